#include "trireme/device/device_fault.h"

#include <c10/util/Exception.h>

#include "trireme/device/out_of_memory.h"

namespace trireme {

std::optional<SystemFault> as_device_fault(const std::exception& error) {
  const auto* fault = dynamic_cast<const c10::AcceleratorError*>(&error);
  if (fault == nullptr || as_out_of_memory(error)) return std::nullopt;
  std::string text = fault->what_without_backtrace();
  text.resize(text.find_last_not_of("\n ") + 1);
  return SystemFault(cat("the device failed: ", text, "; look at nvidia-smi -q and dmesg of this machine"));
}

}  // namespace trireme
