#include "trireme/base/error.h"
#include "trireme/comm/nccl_backend.h"

namespace trireme {

void require_nccl() {
  throw ConfigError(
      "ranks on GPUs exchange by nccl, and this program was built without CUDA: build with TRIREME_CUDA=ON, "
      "or use --device cpu");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&,
                                                    const std::string&, int, const std::vector<int>&,
                                                    at::Device, std::chrono::milliseconds) {
  require_nccl();
  return nullptr;
}

}  // namespace trireme
