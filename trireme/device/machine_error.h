// What an exception says of the machine: missing memory, or a fault of this rank's device. Both are known by
// what libraries throw.
#pragma once

#include <exception>

#include "trireme/device/device_fault.h"
#include "trireme/device/out_of_memory.h"

namespace trireme {

// Calls `take` with the ConfigError or the SystemFault; false: the error is neither.
template <typename Take>
bool take_machine_error(const std::exception& error, const Take& take) {
  if (const auto memory = as_out_of_memory(error)) {
    take(*memory);
    return true;
  }
  const auto fault = as_device_fault(error);
  if (fault) take(*fault);
  return fault.has_value();
}

// The same of an error that counts as a bug otherwise. The device is asked before memory counts as missing:
// on one that has failed no library gets any.
template <typename Take>
bool take_machine_error_before_bug(const std::exception& error, const Take& take) {
  if (const auto fault = device_fault_behind(error)) {
    take(*fault);
    return true;
  }
  return take_machine_error(error, take);
}

}  // namespace trireme
