#include "trireme/device/processor.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "trireme/device/simd_level.h"

namespace trireme {
namespace {

std::string cpuinfo_field(const std::string& field) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(field, 0) == 0) {
      const auto colon = line.find(':');
      return colon == std::string::npos ? "" : line.substr(std::min(colon + 2, line.size()));
    }
  return "";
}

}  // namespace

bool cpu_has_bf16_matmul() {
  const std::string flags = " " + cpuinfo_field("flags") + " ";
  const auto has = [&](const char* flag) { return flags.find(flag) != std::string::npos; };
  if (has(" amx_bf16 ")) return true;
  // Intel's AVX512-BF16 takes twice the time of fp32's products (docs/benchmarks/results.md).
  return has(" avx512_bf16 ") && cpuinfo_field("vendor_id") == "AuthenticAMD";
}

bool cpu_rounds_to_bf16() {
  return simd_level() == SimdLevel::v4 && __builtin_cpu_supports("avx512bf16");
}

SimdLevel simd_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd"))
    return SimdLevel::v4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return SimdLevel::v3;
  return SimdLevel::base;
}

std::string cpu_model_name() {
  const std::string name = cpuinfo_field("model name");
  return name.empty() ? "unknown processor" : name;
}

}  // namespace trireme
