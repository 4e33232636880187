#include "trireme/engine/not_finite_tensor.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"
#include "trireme/engine/engine_options.h"
#include "trireme/model/finite_values.h"

namespace trireme {
namespace {

// What is looked at comes from a GPU behind its gather, and so behind other ranks.
std::optional<std::string> look_at(const UnitSpec& unit, const at::Tensor& whole, Group& all) {
  std::optional<ActivityWait> wait;
  if (!whole.is_cpu()) wait.emplace(all.activity());
  return not_finite_row(unit, whole);
}

// Of masters that are finite, the first whose 16-bit value is not.
std::optional<std::string> not_finite_value(const std::vector<UnitSpec>& units, ParameterStore& parameters,
                                            Group& all) {
  for (size_t i = 0; i < units.size(); ++i) {
    const int unit = static_cast<int>(i);
    const at::Tensor values = parameters.gather(unit);
    const at::ScalarType dtype = values.scalar_type();
    const auto found = dtype == at::kFloat ? std::nullopt : look_at(units[i], values, all);
    parameters.release(unit);
    if (dtype == at::kFloat) return std::nullopt;  // the masters themselves
    if (found)
      return cat("The first weight that is finite in fp32, but not in ", dtype_name(dtype),
                 ", in which the model computes: ", *found);
  }
  return std::nullopt;
}

}  // namespace

NotFinite not_finite_tensor(const std::vector<UnitSpec>& units, ParameterStore& parameters,
                            GradientStore* gradients, Group& all, at::Device device, double rank_loss) {
  // Every rank looks at whole units, so that all of them end at the same one.
  for (size_t unit = 0; unit < units.size(); ++unit)
    if (const auto found = look_at(units[unit], parameters.whole_master(static_cast<int>(unit)), all))
      return {NotFinite::In::weights, cat("The first weight that is not finite: ", *found)};
  if (const auto found = not_finite_value(units, parameters, all)) return {NotFinite::In::weights, *found};
  std::string weights = "All weights are finite";
  const std::vector<double> losses = Agreement(all, device).gather_one(rank_loss);
  const auto rank =
      std::find_if(losses.begin(), losses.end(), [](double loss) { return !std::isfinite(loss); });
  if (rank != losses.end())
    weights += cat("; the loss of rank ", rank - losses.begin(), "'s own tokens is not");
  if (gradients == nullptr)
    return {NotFinite::In::step, cat(weights, "; gradients were not kept (--update_in_backward)")};
  for (size_t i = 0; i < units.size(); ++i) {
    const size_t unit = units.size() - 1 - i;
    if (const auto found = look_at(units[unit], gradients->whole(static_cast<int>(unit)), all))
      return {NotFinite::In::step,
              cat(weights, "; the first gradient that is not, from the head down: ", *found)};
  }
  return {NotFinite::In::step, cat(weights, "; so are the gradients, and their sum of squares is not")};
}

}  // namespace trireme
