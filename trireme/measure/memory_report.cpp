#include "trireme/measure/memory_report.h"

#include <iomanip>
#include <sstream>
#include <vector>

#include "trireme/base/sizes.h"

namespace trireme {
namespace {

void add_line(std::ostream& out, const std::string& name, const std::vector<std::string>& cells) {
  out << std::left << std::setw(14) << name;
  for (const std::string& cell : cells) out << std::right << std::setw(14) << cell;
  out << '\n';
}

}  // namespace

std::string memory_report(const MemoryState& state, const std::optional<MemoryForecast>& forecast) {
  std::ostringstream out;
  std::vector<std::string> head{"now", "own peak", "at the peak"};
  if (forecast) head.emplace_back("formula");
  add_line(out, "memory", head);
  const auto line = [&](const char* name, int64_t now, int64_t peak, int64_t at_peak, int64_t formula) {
    std::vector<std::string> cells{format_bytes(now), format_bytes(peak), format_bytes(at_peak)};
    if (forecast) cells.push_back(format_bytes(formula));
    add_line(out, name, cells);
  };
  for (const MemoryCategory category : kAllMemoryCategories)
    line(name_of(category), state.now[category], state.peak[category], state.at_peak[category],
         forecast ? forecast->peak[category] : 0);
  line("all", state.now.total(), state.peak_total_bytes, state.at_peak.total(),
       forecast ? forecast->peak_total_bytes : 0);
  return out.str();
}

}  // namespace trireme
