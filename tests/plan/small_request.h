// A request for the small model on devices of round rates, whose memory a test chooses.
#pragma once

#include "trireme/plan/plan_request.h"

#include "tests/plan/planned_step.h"

namespace trireme::testing {

inline PlanRequest small_request(int devices, int64_t tokens, int64_t memory_bytes, bool is_gpu = true) {
  PlanRequest request;
  request.model_name = "small";
  request.model = small_model();
  request.attention_pairs = [](int64_t n) { return 4 * static_cast<double>(n) * static_cast<double>(n) / 2; };
  request.hardware = round_profile(is_gpu);
  request.hardware.memory_bytes = memory_bytes;
  request.hardware.host_memory_bytes = int64_t{1} << 34;
  request.hardware.threads = is_gpu ? 0 : 1;
  request.devices = devices;
  request.tokens = tokens;
  request.settings.precision = is_gpu ? Precision::bf16 : Precision::fp32;
  return request;
}

}  // namespace trireme::testing
