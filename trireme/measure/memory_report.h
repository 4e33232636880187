// Where a rank's memory goes, as a table for people: each category's bytes now, at its peak, when the total
// was largest, and by the byte formulas (forecast/memory_forecast.h); beside a GPU, the same of the host.
#pragma once

#include <string>

#include "trireme/device/memory_account.h"
#include "trireme/forecast/memory_forecast.h"

namespace trireme {

// Lines of equal width that end in newlines. Not collective: the report is about one rank.
std::string memory_report(const MemoryState& state, const MemoryForecast& forecast);

}  // namespace trireme
