// An error that a GPU gave, as uncorrectable memory, a lost link, or a GPU off the bus: a fault of the machine,
// which a restart may cure. A kernel's own fault looks the same, and a restart then ends as the run did.
//
// Such an error stays: every later call of CUDA in the process gives it. cuBLAS, cuDNN and code behind them
// tell it in words that other causes share (CUBLAS_STATUS_EXECUTION_FAILED), so these count as a fault only
// where the device itself says that it has one.
#pragma once

#include <exception>
#include <optional>

#include "trireme/base/error.h"

namespace trireme {

// Converts libtorch's error of a device, also as c10d tells it; nullopt for any other, and for missing memory
// (out_of_memory.h).
std::optional<SystemFault> as_device_fault(const std::exception& error);

// Throws the device's own error (as_device_fault) where this thread's device is in use and has failed. Waits for
// no work.
void check_device();

// Of an error that counts as a bug of Trireme otherwise: as_device_fault, or what check_device says, with the
// error's words. nullopt for errors that Trireme throws on purpose, a bug's apart.
std::optional<SystemFault> device_fault_behind(const std::exception& error);

}  // namespace trireme
