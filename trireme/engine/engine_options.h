// What a run asks of the engine; `assemble` turns it into stores and strategies, and nothing else reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "trireme/attention/local_attention.h"

namespace trireme {

enum class Precision { fp32, bf16 };
enum class Recompute {
  full,            // keep each layer's input
  keep_attention,  // also the attention output and its log-sum-exp: backward never repeats attention forward
  none,            // keep all that backward reads
};
// How bf16 matmuls run on a CPU: in its own bf16 instructions, or, where it has none, in fp32 on bf16 values.
enum class Bf16Matmul { automatic, native, fp32 };
enum class OptimizerKind { adamw, sgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;   // skips norms and biases
  double max_grad_norm = 0;  // 0: no clipping
};

struct EngineOptions {
  at::Device device = at::kCPU;
  Precision precision = Precision::fp32;
  Bf16Matmul bf16_matmul = Bf16Matmul::automatic;
  Recompute recompute = Recompute::none;
  AttentionKernel attention = AttentionKernel::automatic;
  int64_t tile_tokens = 0;         // tokens of one tile of a layer's token-wise halves; 0: by rule
  int64_t logits_tile_tokens = 0;  // tokens of one tile of the head; 0: by rule
  int ulysses = 1;
  int ring = 1;
  bool strict_divisible = false;  // refuse lengths that the ulysses degree does not divide
  OptimizerOptions optimizer;
};

Recompute parse_recompute(
    const std::string& text);  // "full", "keep_attention", "none"; ConfigError otherwise
Precision parse_precision(const std::string& text);  // "fp32", "bf16"; ConfigError otherwise

}  // namespace trireme
