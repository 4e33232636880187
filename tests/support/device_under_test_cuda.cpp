#include <cstdlib>

#include <ATen/Context.h>

#include "tests/support/device_under_test.h"

namespace trireme::testing {

std::optional<c10::Device> device_under_test() {
  if (!at::hasCUDA()) return std::nullopt;
  static const bool repeats = [] {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);  // cuBLAS reads it at its first product
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    return true;
  }();
  static_cast<void>(repeats);
  return c10::Device(c10::DeviceType::CUDA, 0);
}

}  // namespace trireme::testing
