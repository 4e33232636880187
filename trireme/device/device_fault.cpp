#include "trireme/device/device_fault.h"

#include <string>
#include <string_view>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
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

std::string words_of(const std::exception& error) {
  const auto* theirs = dynamic_cast<const c10::Error*>(&error);
  std::string words = theirs != nullptr ? theirs->what_without_backtrace() : error.what();
  words.resize(words.find_last_not_of("\n ") + 1);
  return words;
}

SystemFault fault_of(const std::string& words) {
  return SystemFault(cat("the device failed: ", words, "; look at nvidia-smi -q and dmesg of this machine"));
}

bool is_of_another_kind(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) != nullptr &&
         dynamic_cast<const InternalError*>(&error) == nullptr;
}

}  // namespace

std::optional<SystemFault> as_device_fault(const std::exception& error) {
  const auto* fault = dynamic_cast<const c10::Error*>(&error);
  if (fault == nullptr || !is_of_the_device(*fault) || as_out_of_memory(error)) return std::nullopt;
  return fault_of(words_of(error));
}

void check_device() {
  // libtorch asks a device that is registered beside CUDA's first, too.
  const bool registered = at::isPrivateUse1HooksRegistered();
  if (!registered && !at::hasCUDA()) return;
  const c10::DeviceType type = registered ? at::kPrivateUse1 : at::kCUDA;
  const c10::impl::VirtualGuardImpl guard(type);
  const c10::Device device = guard.getDevice();
  // A device that was not in use is not started to be asked.
  if (at::globalContext().getAcceleratorHooksInterface(type).hasPrimaryContext(device.index()))
    guard.getStream(device).query();
}

std::optional<SystemFault> device_fault_behind(const std::exception& error) {
  if (is_of_another_kind(error)) return std::nullopt;
  if (std::optional<SystemFault> known = as_device_fault(error)) return known;
  try {
    check_device();
  } catch (const std::exception& of_device) {
    if (as_device_fault(of_device))
      return fault_of(cat(words_of(of_device), " (met as: ", words_of(error), ")"));
  }
  return std::nullopt;
}

}  // namespace trireme
