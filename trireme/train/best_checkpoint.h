// The best checkpoint so far (--metric_for_best_model): the one whose step had the smallest held-out loss.
// Its perplexity is then the smallest, too. Losses at different lengths cannot be compared, so that each
// context stage has a best one of its own, which replaces that of the stage before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/enum_names.h"
#include "trireme/base/json.h"

namespace trireme {

enum class BestMetric { none, eval_loss, eval_perplexity };
constexpr auto enum_names(BestMetric) {
  using enum BestMetric;
  // The Hugging Face Trainer takes the names with and without eval_.
  return std::to_array<EnumName<BestMetric>>({{none, "none"},
                                              {eval_loss, "eval_loss"},
                                              {eval_loss, "loss"},
                                              {eval_perplexity, "eval_perplexity"},
                                              {eval_perplexity, "perplexity"}});
}

struct BestCheckpoint {
  int64_t step = 0;
  int stage = 0;
  double eval_loss = 0;

  double value(BestMetric metric) const;
};

// Whether a checkpoint with this held-out loss is better than the best one so far.
bool is_better(double eval_loss, int stage, const std::optional<BestCheckpoint>& best);

// As in trainer_state.json; null: none.
Json to_json(const std::optional<BestCheckpoint>& best, BestMetric metric);
// Throws DataError that names the field.
std::optional<BestCheckpoint> parse_best_checkpoint(const Json& json, const std::string& origin);

}  // namespace trireme
