// Stands in for host_pinning_cuda.cpp in a build without CUDA.
#include "trireme/base/error.h"
#include "trireme/device/host_pinning.h"

namespace trireme {

HostPinning make_host_pinning(at::Device device) {
  if (!device.is_cuda()) return no_pinning();
  throw ConfigError(cat("pinned memory for ", device.str(),
                        ": this build has no CUDA half; build with TRIREME_CUDA=ON (./dev build cuda)"));
}

}  // namespace trireme
