#include "trireme/measure/memory_report.h"

#include <iomanip>
#include <sstream>
#include <vector>

#include "trireme/base/sizes.h"

namespace trireme {
namespace {

constexpr int kNameWidth = 20, kCellWidth = 14;

void add_line(std::ostream& out, const std::string& name, const std::vector<std::string>& cells) {
  out << std::left << std::setw(kNameWidth) << name;
  for (const std::string& cell : cells) out << std::right << std::setw(kCellWidth) << cell;
  out << '\n';
}

// `formula` and its total are what the formulas give for the device or the host.
void add_lines(std::ostream& out, const std::string& prefix, const MemoryUse& use, const MemoryBytes& formula,
               int64_t formula_total_bytes) {
  const auto line = [&](const std::string& name, int64_t now, int64_t peak, int64_t at_peak, int64_t known) {
    add_line(out, prefix + name,
             {format_bytes(now), format_bytes(peak), format_bytes(at_peak), format_bytes(known)});
  };
  for (const MemoryCategory category : kAllMemoryCategories)
    line(name_of(category), use.now[category], use.peak[category], use.at_peak[category], formula[category]);
  line("all", use.now.total(), use.peak_total_bytes, use.at_peak.total(), formula_total_bytes);
}

}  // namespace

std::string memory_report(const MemoryState& state, const MemoryForecast& forecast) {
  std::ostringstream out;
  add_line(out, "memory", {"now", "own peak", "at the peak", "formula"});
  add_lines(out, "", state, forecast.peak, forecast.peak_total_bytes);
  if (state.host.peak_total_bytes > 0)
    add_lines(out, "host_", state.host, forecast.host, forecast.host.total());
  return out.str();
}

}  // namespace trireme
