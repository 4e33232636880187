#include "trireme/device/device_fault.h"

#include <string>
#include <string_view>

#include <c10/util/Exception.h>

#include "trireme/device/out_of_memory.h"

namespace trireme {

namespace {

// c10d's watchdog of NCCL tells a fault that it meets as an error of its own, in these words.
bool is_of_the_device(const c10::Error& error) {
  return dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
         (dynamic_cast<const c10::DistBackendError*>(&error) != nullptr &&
          std::string_view(error.what_without_backtrace()).find("CUDA error: ") != std::string_view::npos);
}

}  // namespace

std::optional<SystemFault> as_device_fault(const std::exception& error) {
  const auto* fault = dynamic_cast<const c10::Error*>(&error);
  if (fault == nullptr || !is_of_the_device(*fault) || as_out_of_memory(error)) return std::nullopt;
  std::string text = fault->what_without_backtrace();
  text.resize(text.find_last_not_of("\n ") + 1);
  return SystemFault(cat("the device failed: ", text, "; look at nvidia-smi -q and dmesg of this machine"));
}

}  // namespace trireme
