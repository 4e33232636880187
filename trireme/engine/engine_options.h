// What a run asks of the engine; `assemble` turns it into stores and strategies.
// An option is explained by its help (engine_options.cpp), a field without one here.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "trireme/attention/sequence_attention.h"
#include "trireme/base/option_list.h"
#include "trireme/forecast/precision.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/memory/offload.h"
#include "trireme/model/lora.h"
#include "trireme/model/rope_override.h"
#include "trireme/shard/loss_scaler.h"
#include "trireme/shard/optimizer.h"

namespace trireme {

enum class Purpose {
  training,
  evaluation,  // forward alone: neither gradients nor optimizer nor fp32 masters exist
};
// What is sharded over all ranks (arXiv 1910.02054): each stage adds to the one before.
enum class ZeroStage { none, optimizer, gradients, parameters };

struct OptimizerOptions {
  const OptimizerKind* kind = &find_optimizer("adamw_torch");
  double beta1 = OptimizerSettings{}.beta1;
  double beta2 = OptimizerSettings{}.beta2;
  double epsilon = OptimizerSettings{}.epsilon;
  double weight_decay = 0;
  double max_grad_norm = 0;
  at::ScalarType state_dtype = at::kFloat;
  uint64_t seed = 0;  // of the stochastic rounding
};

// The largest micro-batch that a rank will be given, from which memory is known beforehand.
struct PlannedBatch {
  int64_t samples = 0;          // B; 0: unknown
  int64_t tokens = 0;           // S of one sample, over all ranks that share it; 0: unknown
  bool packed = false;          // samples hold documents
  int64_t document_tokens = 0;  // of the document that a token is in, on average; 0: of a sample
  int64_t micro_batches = 1;    // of a step
  bool known() const { return samples > 0 && tokens > 0; }
};

struct EngineOptions {
  Purpose purpose = Purpose::training;
  // False: restore_unit_share of every unit that is trained follows, and its files stay unread.
  bool read_weights = true;
  at::Device device = at::kCPU;
  Precision precision = Precision::fp32;
  Bf16Matmul bf16_matmul = Bf16Matmul::automatic;
  // Groups of 0 layers: with automatic as memory asks, else 1. The engine writes what is left open, and the
  // model's layers.
  RecomputePlan recompute = {.policy = Recompute::automatic, .checkpoint_every = 0};
  PlannedBatch planned_batch = {};  // unknown: automatic is keep_attention
  int64_t memory_budget_bytes = 0;
  int64_t host_memory_limit_bytes = 0;
  AttentionKernel attention = AttentionKernel::automatic;
  RopeOverride rope = {};
  LoraOptions lora = {};
  int64_t nearest_keys = 0;  // 0: all; else of those that a query sees (kernels/nearest_keys.h)
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
  int ulysses = 1;
  int ring = 1;
  RingMethod ring_method = RingMethod::ring;  // with ring > 1
  int head_chunks = 1;
  SparseBlocks sparse = {};  // dense: what config.json says
  bool strict_divisible = false;
  ZeroStage zero = ZeroStage::none;
  at::ScalarType reduce_dtype = at::kFloat;
  OffloadOptions offload = {};
  bool update_in_backward = false;
  bool save_in_background = false;  // the forecast counts a checkpoint's snapshot on the host
  LossScalerSettings loss_scale = {};
  OptimizerOptions optimizer = {};
};

inline constexpr auto kDtypeNames = std::to_array<EnumName<at::ScalarType>>(
    {{at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}, {at::kHalf, "fp16"}});
const char* dtype_name(at::ScalarType dtype);
// Of values between tiles.
at::ScalarType storage_dtype(Precision precision);

// How the model computes, what it keeps where, and how ranks share a sequence.
void list_engine_options(OptionList& list, EngineOptions& options);
// Of training: precision, optimizer, and what gradients and optimizer state become.
void list_update_options(OptionList& list, EngineOptions& options);
// Both.
void list_training_options(OptionList& list, EngineOptions& options);

}  // namespace trireme
