// Seconds of one optimizer step of the incumbents (incumbent_memory.h), by the rates of a hardware profile.
// Nothing is hidden: their exchanges and copies to the host block (ulysses_sp.py, monkey_patches.py), and
// their gathers of weights, which do run ahead, are short beside long attention and not counted.
//
//   attention         (2 forward x 4 + 10) D FLOPs a pair and head: gradient checkpointing repeats the
//                     forward
//   products          2 FLOPs a weight and token, twice forward and twice that backward; TiledMLP's MLP has
//                     a third forward, the head one
//   token operations  each buffer of the step is written once and read once
//   exchanges         q, k, v and the output, forward twice and backward once
#pragma once

#include "trireme/plan/hardware_profile.h"

#include "bench/incumbents/incumbent_memory.h"

namespace trireme {

// FlashAttention-2 on Hopper at 32K tokens, causal, 128 wide, bf16: cudnn-frontend's benchmark on an H200.
inline constexpr double kFlash2Forward_flops = 365e12, kFlash2Backward_flops = 330e12;

struct IncumbentTime {
  double attention_seconds = 0;
  double products_seconds = 0;
  double token_operations_seconds = 0;
  double exchange_seconds = 0;
  double offload_seconds = 0;    // activations, to the host and back
  double optimizer_seconds = 0;  // on the host
  double seconds = 0;
  double tokens_per_second = 0;  // of all ranks
};

// `accumulation` micro-batches in a step; `streamed_bytes_per_second`: what kernels reach of the device's
// memory.
IncumbentTime incumbent_time(const IncumbentRun& run, const HardwareProfile& hardware,
                             double streamed_bytes_per_second, int64_t accumulation = 1);

}  // namespace trireme
