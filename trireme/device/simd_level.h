// Which of the compiled x86-64 levels of a kernel file this processor runs (see trireme_simd_kernels in
// cmake/TriremeTargets.cmake).
#pragma once

namespace trireme {

enum class SimdLevel { base, v3, v4 };

inline SimdLevel simd_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd"))
    return SimdLevel::v4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return SimdLevel::v3;
  return SimdLevel::base;
}

}  // namespace trireme
