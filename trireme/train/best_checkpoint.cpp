#include "trireme/train/best_checkpoint.h"

#include <cmath>
#include <limits>

namespace trireme {

double BestCheckpoint::value(BestMetric metric) const {
  return metric == BestMetric::eval_perplexity ? std::exp(eval_loss) : eval_loss;
}

bool is_better(double eval_loss, int stage, const std::optional<BestCheckpoint>& best) {
  if (!std::isfinite(eval_loss)) return false;
  return !best || best->stage != stage || eval_loss < best->eval_loss;
}

Json to_json(const std::optional<BestCheckpoint>& best, BestMetric metric) {
  if (!best) return nullptr;
  return {{"step", best->step},
          {"stage", best->stage},
          {"eval_loss", best->eval_loss},
          {"metric", name_of(metric)},
          {"value", best->value(metric)}};
}

std::optional<BestCheckpoint> parse_best_checkpoint(const Json& json, const std::string& origin) {
  if (json.is_null()) return std::nullopt;
  constexpr double kMost = std::numeric_limits<double>::max();
  return BestCheckpoint{whole_number(json, "step", {0, kLargestExactWhole}, origin),
                        static_cast<int>(whole_number(json, "stage", {0, 1'000'000}, origin)),
                        finite_number(json, "eval_loss", -kMost, kMost, origin)};
}

}  // namespace trireme
