#include "trireme/base/error.h"
#include "trireme/kernels/flash4_runner.h"

namespace trireme {

std::string flash4_lacks() {
  return "this build has no CUDA half, or was made without flash-attn-4; build with ./dev build cuda";
}

std::unique_ptr<Flash4Runner> make_flash4_runner() {
  throw ConfigError("attention kernel 'flash4': " + flash4_lacks() +
                    ", or use --attention auto or --attention flash");
}

}  // namespace trireme
