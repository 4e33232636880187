// The x86-64 levels that a kernel file is compiled for (trireme_simd_kernels in cmake/TriremeTargets.cmake),
// each time in a namespace of its own. A kernel file includes this, so nothing here may leave code of a level
// behind.
#pragma once

// Declares what a kernel file defines, in the namespace of each level.
#define TRIREME_SIMD_KERNEL(...) \
  namespace simd_base {          \
  __VA_ARGS__;                   \
  }                              \
  namespace simd_v3 {            \
  __VA_ARGS__;                   \
  }                              \
  namespace simd_v4 {            \
  __VA_ARGS__;                   \
  }

namespace trireme {

enum class SimdLevel { base, v3, v4 };

// The highest that this processor runs.
SimdLevel simd_level();

template <typename Kernel>
Kernel fastest(Kernel base, Kernel v3, Kernel v4) {
  const Kernel kernels[] = {base, v3, v4};
  return kernels[static_cast<int>(simd_level())];
}

}  // namespace trireme
