// One training step of the incumbents, as their allocations and releases in order.
//
//   embedding, layers without gradient -> final norm, head, loss -> for each layer from the last: forward
//   once more with gradient, then backward -> embedding's gradient -> optimizer
//
// Sources: transformers 4.51.3 models/llama/modeling_llama.py (Qwen3's has norms of q and k beside),
// loss/loss_utils.py; torch.utils.checkpoint and ArcticTraining's monkey_patches.py; liger_kernel 0.5.10
// ops/; flash_attn 2.7.4 csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp; deepspeed 0.17.0 (the same
// lines in 0.19) runtime/zero/ and runtime/sequence_parallel/ulysses_sp.py.
#pragma once

#include "bench/incumbents/incumbent_trace.h"

namespace trireme {

void trace_incumbent_step(const IncumbentRun& run, IncumbentTrace& trace);

}  // namespace trireme
