#include "trireme/eval/tensor_extremes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/model/unit_weights.h"

namespace trireme {

void Extremes::add(const at::Tensor& ours, const at::Tensor& reference) {
  if (reference.numel() == 0) return;
  const double worst = (ours - reference).abs().max().item<double>();
  difference = std::max(difference, std::isfinite(worst) ? worst : std::numeric_limits<double>::infinity());
  largest = std::max(largest, reference.abs().max().item<double>());
}

void Extremes::add(double ours, double reference) {
  add(at::full({1}, ours, at::kDouble), at::full({1}, reference, at::kDouble));
}

double Extremes::error() const {
  if (difference == 0) return 0;
  // A reference that is infinite judges nothing.
  const bool judged = largest > 0 && std::isfinite(largest);
  return judged ? difference / largest : std::numeric_limits<double>::infinity();
}

namespace {

// Below this share of a unit's largest entry a gradient in fp64 may be rounding alone: that of a router whose
// tokens have one expert each, by weights that sum to one.
constexpr double kRoundingOfFp64 = 1e-12;

}  // namespace

void compare_gradients(const UnitSpec& unit, const at::Tensor& ours,
                       const std::function<at::Tensor(const ParameterSpec&)>& reference,
                       std::vector<ComparedTensor>& compared) {
  const size_t first = compared.size();
  double largest = 0;
  for (const ParameterSpec& spec : unit.parameters) {
    Extremes& extremes = compared.emplace_back(ComparedTensor{"grad." + spec.name}).extremes;
    extremes.add(parameter_view(ours, spec), reference(spec));
    largest = std::max(largest, extremes.largest);
  }
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    Extremes& extremes = compared[first + i].extremes;
    if (unit.parameters[i].gradient_vanishes || extremes.largest <= kRoundingOfFp64 * largest)
      extremes.largest = largest;
  }
}

std::vector<TensorError> errors_over_ranks(const std::vector<ComparedTensor>& compared,
                                           Agreement& agreement) {
  std::vector<double> worst;
  for (const ComparedTensor& tensor : compared)
    worst.insert(worst.end(), {tensor.extremes.difference, tensor.extremes.largest});
  worst = agreement.largest(worst);
  std::vector<TensorError> errors;
  for (size_t i = 0; i < compared.size(); ++i) {
    const Extremes over_ranks{worst[2 * i], worst[2 * i + 1]};
    errors.push_back({compared[i].name, over_ranks.error(), over_ranks.largest});
  }
  std::ranges::stable_sort(errors,
                           [](const TensorError& a, const TensorError& b) { return a.error > b.error; });
  return errors;
}

}  // namespace trireme
