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

// The bytes that the formulas give for the device or the host.
struct Formula {
  MemoryBytes peak;
  int64_t total_bytes = 0;
};

void add_lines(std::ostream& out, const std::string& prefix, const MemoryUse& use,
               const std::optional<Formula>& formula) {
  const auto line = [&](const std::string& name, int64_t now, int64_t peak, int64_t at_peak, int64_t known) {
    std::vector<std::string> cells{format_bytes(now), format_bytes(peak), format_bytes(at_peak)};
    if (formula) cells.push_back(format_bytes(known));
    add_line(out, prefix + name, cells);
  };
  for (const MemoryCategory category : kAllMemoryCategories)
    line(name_of(category), use.now[category], use.peak[category], use.at_peak[category],
         formula ? formula->peak[category] : 0);
  line("all", use.now.total(), use.peak_total_bytes, use.at_peak.total(), formula ? formula->total_bytes : 0);
}

}  // namespace

std::string memory_report(const MemoryState& state, const std::optional<MemoryForecast>& forecast) {
  std::ostringstream out;
  std::vector<std::string> head{"now", "own peak", "at the peak"};
  if (forecast) head.emplace_back("formula");
  add_line(out, "memory", head);
  std::optional<Formula> device, host;
  if (forecast) {
    device = {forecast->peak, forecast->peak_total_bytes};
    host = {forecast->host, forecast->host.total()};
  }
  add_lines(out, "", state, device);
  if (state.host.peak_total_bytes > 0) add_lines(out, "host_", state.host, host);
  return out.str();
}

}  // namespace trireme
