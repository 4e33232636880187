// The memory that DeepSpeed and Hugging Face Transformers take on one GPU in a training step: an inventory of
// their buffers, each with its size from shapes and dtypes and the line of their source that allocates it.
// It has no constant that was fitted. ZeRO 3, bf16, gradient checkpointing, FlashAttention, micro-batches of
// one sample: what ALST (arXiv 2506.13996) and the Hugging Face blog on Ulysses measured.
//
//   run -> incumbent_step.h, one step's allocations and releases in their order -> caching_allocator.h
//       -> what is held and mapped at the fullest moment
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// torch_sdpa: PyTorch's own FlashAttention-2 under scaled_dot_product_attention, to which Transformers gives
// keys and values repeated for each query head.
enum class FlashAttention : uint8_t { v2, v3, torch_sdpa };

// ALST's switches. Buckets and prefetch have DeepSpeed's defaults, as the published recipes leave them.
struct IncumbentPolicy {
  bool liger_kernels = false;  // norms, rotation, SwiGLU, and loss without whole logits
  bool tiled_mlp = false;      // DeepSpeed's TiledMLP, in tiles of about M tokens, on Transformers' kernels
  bool offload_activations = false;  // each layer's input, to the host
  bool offload_optimizer = true;     // and what it steps: masters, moments, summed gradients
  bool offload_parameters = false;   // shares of the weights
  FlashAttention flash = FlashAttention::v2;
  // Liger-Kernel before 0.6.1: ops/rms_norm.py and ops/rope.py count rows times the width of a row, M or H D,
  // in 32 bits. Beyond, "an illegal memory access" (the comment in ArcticTraining's
  // run-h100-sp1-llama-8b.yml).
  bool indices_32_bit = false;
};

struct IncumbentRun {
  ModelSizes model;
  int ranks = 1;           // over which ZeRO 3 shards
  int sequence_ranks = 1;  // of them, that share a sample; divides the heads
  int64_t tokens = 0;      // of a sample
  IncumbentPolicy policy;

  int64_t rank_tokens() const { return (tokens + sequence_ranks - 1) / sequence_ranks; }
};

struct IncumbentBuffer {
  std::string_view name;
  std::string_view source;  // file and function that allocate it
  int64_t bytes = 0;
};

// "CUDA typically uses around 1 GiB per GPU" (arXiv 2506.13996, section 2.1).
inline constexpr int64_t kIncumbentProcess_bytes = int64_t{1} << 30;

// NCCL's buffers, of which the same section says that they "can consume multiple gigabytes", on one machine
// of up to 8 GPUs. Over several machines NCCL opens 2 channels to a peer instead of 32 (its log on
// p5.48xlarge), and no source gives what they take: 0.
int64_t incumbent_nccl_bytes(const IncumbentRun& run);

struct IncumbentMemory {
  std::string_view fullest_phase;        // when most is held
  std::vector<IncumbentBuffer> buffers;  // held then, largest first; buffers of one name and source together
  int64_t held_bytes = 0;                // their sum: torch.cuda.max_memory_allocated
  int64_t mapped_bytes = 0;              // with freed blocks that stay mapped: max_memory_reserved
  int64_t nccl_bytes = 0;
  int64_t device_bytes() const {  // as nvidia-smi tells
    return mapped_bytes + nccl_bytes + kIncumbentProcess_bytes;
  }
};

// Throws ConfigError: no tokens, or heads that the sequence ranks do not divide as DeepSpeed asks.
IncumbentMemory incumbent_memory(const IncumbentRun& run);

// The longest sample, in steps of 1,000 tokens, whose device_bytes stay within `device_bytes`; run.tokens is
// not read. 0: not even the shortest.
int64_t incumbent_longest_tokens(IncumbentRun run, int64_t device_bytes);

// Parameters of the model, norms included.
int64_t incumbent_parameters(const ModelSizes& model);

}  // namespace trireme
