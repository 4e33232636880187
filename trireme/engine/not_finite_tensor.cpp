#include "trireme/engine/not_finite_tensor.h"

#include <cmath>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"
#include "trireme/model/finite_values.h"

namespace trireme {
namespace {

// The first rank whose own loss is not finite; none where all are.
std::optional<int> rank_at_fault(EngineParts& parts, double rank_loss) {
  Group& all = *parts.mesh.all;
  const int64_t mine = std::isfinite(rank_loss) ? 0 : all.size() - all.rank();
  const int64_t found = Agreement(all, parts.options.device).largest(mine);
  return found == 0 ? std::nullopt : std::optional(static_cast<int>(all.size() - found));
}

}  // namespace

std::string not_finite_tensor(EngineParts& parts, double rank_loss) {
  const std::vector<UnitSpec>& units = parts.layout.units;
  // Every rank looks at whole units, so that all of them end at the same one.
  for (size_t unit = 0; unit < units.size(); ++unit)
    if (const auto found =
            not_finite_row(units[unit], parts.parameters->whole_master(static_cast<int>(unit))))
      return cat("The first weight that is not finite: ", *found);
  const std::optional<int> rank = rank_at_fault(parts, rank_loss);
  const std::string weights =
      rank ? cat("All weights are finite; the loss of rank ", *rank, "'s own tokens is not")
           : "All weights are finite";
  if (parts.options.update_in_backward)
    return cat(weights, "; gradients were not kept (--update_in_backward)");
  for (size_t i = 0; i < units.size(); ++i) {
    const size_t unit = units.size() - 1 - i;
    if (const auto found = not_finite_row(units[unit], parts.gradients->whole(static_cast<int>(unit))))
      return cat(weights, "; the first gradient that is not, from the head down: ", *found);
  }
  return cat(weights, "; so are the gradients, and their sum of squares is not");
}

}  // namespace trireme
