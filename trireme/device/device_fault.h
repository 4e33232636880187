// An error that a GPU gave, as uncorrectable memory, a lost link, or a GPU off the bus: a fault of the machine,
// which a restart may cure. A kernel's own fault looks the same, and a restart then ends as the run did.
#pragma once

#include <exception>
#include <optional>

#include "trireme/base/error.h"

namespace trireme {

// Converts libtorch's error of a device, also as c10d tells it; nullopt for any other, and for missing memory
// (out_of_memory.h).
std::optional<SystemFault> as_device_fault(const std::exception& error);

}  // namespace trireme
