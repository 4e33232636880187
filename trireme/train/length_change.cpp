#include "trireme/train/length_change.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/base/sizes.h"
#include "trireme/train/saved_losses.h"

namespace trireme {
namespace {

constexpr double kMostLoss = std::numeric_limits<double>::max();

double mean(const std::deque<double>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

std::string steps_text(size_t steps) {
  return steps == 1 ? "step" : cat(steps, " steps");
}

}  // namespace

void LengthChange::stage_begins(int64_t tokens, int64_t steps) {
  if (tokens == tokens_) return;
  if (!recent_.empty()) {
    baseline_ = Baseline{tokens_, static_cast<int64_t>(recent_.size()), mean(recent_)};
    wanted_ = std::min<int64_t>(steps, kAfter);
  }
  recent_.clear();
  tokens_ = tokens;
}

std::optional<std::string> LengthChange::add(double loss) {
  recent_.push_back(loss);
  if (recent_.size() > kBefore) recent_.pop_front();
  if (!baseline_ || std::ssize(recent_) < wanted_) return std::nullopt;
  const Baseline before = *baseline_;
  baseline_.reset();
  const double now = mean(recent_), change = now / before.loss;
  const bool jumped = before.loss > 0 && change > kJump;
  std::string text =
      cat(jumped ? "warning: " : "", "length ", format_count(before.tokens), " -> ", format_count(tokens_),
          ": the loss was ", format_fixed(before.loss, 4), " over the last ",
          steps_text(static_cast<size_t>(before.steps)), ", and is ", format_fixed(recent_.front(), 4),
          " in the first and ", format_fixed(now, 4), " over the first ", steps_text(recent_.size()));
  if (before.loss > 0) text += cat(" (", change >= 1 ? "+" : "", format_percent(change - 1), ")");
  if (jumped)
    text += ": positions that the model does not know (--rope_scaling), or too high a learning rate";
  return text;
}

Json LengthChange::state() const {
  Json state = {{"tokens", tokens_}, {"recent", recent_}};
  if (baseline_)
    state["baseline"] = {{"tokens", baseline_->tokens},
                         {"steps", baseline_->steps},
                         {"loss", baseline_->loss},
                         {"wanted", wanted_}};
  return state;
}

void LengthChange::restore(const Json& state, const std::string& origin) {
  tokens_ = whole_number(state, "tokens", {0}, origin);
  const std::vector<double> recent = saved_losses(state, "recent", kBefore, origin);
  recent_.assign(recent.begin(), recent.end());
  baseline_.reset();
  if (find_field(state, "baseline", origin) == nullptr) return;
  const Json& baseline = object_value(state, "baseline", origin);
  const std::string of = origin + ": baseline";
  baseline_ = Baseline{whole_number(baseline, "tokens", {1}, of), whole_number(baseline, "steps", {1}, of),
                       finite_number(baseline, "loss", -kMostLoss, kMostLoss, of)};
  wanted_ = whole_number(baseline, "wanted", {1, kLargestExactWhole}, of);
}

}  // namespace trireme
