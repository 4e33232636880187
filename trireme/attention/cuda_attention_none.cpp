// Stands in for cuda_attention.cpp in a build without CUDA.
#include "trireme/attention/cuda_attention.h"
#include "trireme/base/error.h"

namespace trireme {

std::unique_ptr<LocalAttention> make_cuda_attention(AttentionKernel /*kernel*/, at::ScalarType /*dtype*/) {
  throw ConfigError(
      "attention on CUDA: this build has no CUDA half; build with TRIREME_CUDA=ON (./dev build cuda)");
}

}  // namespace trireme
