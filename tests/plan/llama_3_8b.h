// Llama-3-8B in bf16 on machines of 8 GPUs of 80 GB: the situation that guides to long training ask about.
#pragma once

#include "trireme/plan/memory_change_sets.h"

#include "tests/forecast/llama_3_8b.h"
#include "tests/plan/planned_step.h"

namespace trireme::testing {

// Of rank 0, with tiles as the engine chooses them on a GPU.
inline PlannedStep llama_step(int64_t tokens, int ulysses, int ranks, int zero, Recompute recompute) {
  ForecastInputs inputs;
  inputs.model = llama_3_8b();
  inputs.tokens = tokens;
  inputs.ranks = ranks;
  inputs.zero = zero;
  inputs.tile_tokens = 8192;
  inputs.logits_tile_tokens = 2048;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.device_is_host = false;
  inputs.bf16_values = inputs.adamw_kernel = inputs.fused_on_gpu = true;
  inputs.recompute = {recompute, 1, 1, 32};
  PlannedStep step;
  step.inputs = with_sequence_ranks(inputs, ulysses, 1, 0);
  step.attention_pairs = 32 * static_cast<double>(tokens) * static_cast<double>(tokens) / 2;
  return step;
}

// Rates near those of the field's tables (docs/benchmarks); a test's result does not hang on them.
inline HardwareProfile gpu_80gb() {
  HardwareProfile profile = round_profile(/*is_gpu=*/true);
  profile.name = "gpu-80gb";
  profile.devices_per_machine = 8;
  profile.memory_bytes = int64_t{80} << 30;
  profile.host_memory_bytes = int64_t{1} << 40;
  profile.peak_flops_16_bit = 989e12;
  for (auto& [kind, table] : profile.rates_16_bit) {
    const bool products = kind == WorkKind::matmul || kind == WorkKind::weight_gradient;
    table = {{{0, 0, products ? 6e14 : is_attention(kind) ? 4e14 : 1e12}}};
  }
  profile.within_machine = {1e-5, 3e11};
  profile.across_machines = {3e-5, 4e10};
  profile.to_host = {1e-5, 5e10};
  profile.disk_read = {1e-4, 1e9};
  profile.disk_write = {1e-4, 1e9};
  profile.host_optimizer_per_second = 2e8;
  return profile;
}

constexpr int64_t kGpuLimit_bytes = int64_t{76} << 30;  // for tensors, of 80 GB

// All of the host beside a GPU.
inline TensorLimits limits_of(const PlannedStep& step, const HardwareProfile& hardware,
                              int64_t device_bytes) {
  return {device_bytes, hardware.is_gpu ? hardware.host_memory_bytes : 0,
          hardware.machine_devices(step.inputs.ranks)};
}

}  // namespace trireme::testing
