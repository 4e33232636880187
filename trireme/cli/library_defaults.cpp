#include "trireme/cli/library_defaults.h"

#include <cstdlib>

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Logging.h>

#include "trireme/base/environment.h"

namespace trireme {

void set_library_defaults() {
  if (!environment("PYTORCH_ALLOC_CONF") && !environment("PYTORCH_CUDA_ALLOC_CONF"))
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*replace=*/0);
  c10::initLogging();
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000", /*replace=*/0);
}

std::string gpu_allocator_settings() {
  return c10::CachingAllocator::getAllocatorSettings();
}

}  // namespace trireme
