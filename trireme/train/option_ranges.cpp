#include "trireme/train/option_ranges.h"

#include <algorithm>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {
namespace {

constexpr double kSteps = static_cast<double>(kMostSteps);
constexpr double kMostFloat = 1e38;        // a bit below what fp32 holds
constexpr double kTokens = 1099511627776;  // 2^40
constexpr auto kBatches = static_cast<double>(kMostBatches);
constexpr double kMostSeed = 9007199254740992;  // 2^53: what every JSON reader keeps

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.15g", value);
  return text;
}

bool holds(const OptionRange& range, double value) {
  if (!(value >= range.least && value <= range.most)) return false;
  if (range.ends == OptionRange::Ends::above_least) return value > range.least;
  return range.ends != OptionRange::Ends::below_most || value < range.most;
}

std::string range_text(const OptionRange& range) {
  switch (range.ends) {
    case OptionRange::Ends::above_least:
      return cat("a number above ", number_text(range.least), ", up to ", number_text(range.most));
    case OptionRange::Ends::below_most:
      return cat("a number from ", number_text(range.least), " to below ", number_text(range.most));
    case OptionRange::Ends::closed:
      break;
  }
  return cat("a number from ", number_text(range.least), " to ", number_text(range.most));
}

template <auto Member>
double of(const TrainOptions& o) {
  return static_cast<double>(o.*Member);
}
template <auto Member>
double of_engine(const TrainOptions& o) {
  return static_cast<double>(o.engine.*Member);
}
template <auto Member>
double of_optimizer(const TrainOptions& o) {
  return static_cast<double>(o.engine.optimizer.*Member);
}

}  // namespace

const std::vector<OptionRange>& option_ranges() {
  using O = TrainOptions;
  using enum OptionRange::Ends;
  static const std::vector<OptionRange> ranges{
      {"max_seq_length", of<&O::max_seq_length>, 1, kTokens},
      {"max_steps", of<&O::max_steps>, -1, kSteps},
      {"num_train_epochs", of<&O::num_train_epochs>, 0, kSteps},
      {"per_device_train_batch_size", of<&O::per_device_train_batch_size>, 1, kBatches},
      {"gradient_accumulation_steps", of<&O::gradient_accumulation_steps>, 1, kBatches},
      {"learning_rate", of<&O::learning_rate>, 0, kMostFloat, above_least},
      {"warmup_ratio", of<&O::warmup_ratio>, 0, 1},
      {"warmup_steps", of<&O::warmup_steps>, 0, kSteps},
      {"validation_split_percentage", of<&O::validation_split_percentage>, 0, 100, below_most},
      {"save_steps", of<&O::save_steps>, 0, kSteps},
      {"save_total_limit", of<&O::save_total_limit>, 0, kSteps},
      {"logging_steps", of<&O::logging_steps>, 1, kSteps},
      {"eval_steps", of<&O::eval_steps>, 0, kSteps},
      {"max_eval_samples", of<&O::max_eval_samples>, 0, kTokens},
      {"seed", of<&O::seed>, 0, kMostSeed},
      {"peak_tflops", of<&O::peak_tflops>, 0, 1e9},
      {"ulysses", of_engine<&EngineOptions::ulysses>, 1, kBatches},
      {"ring", of_engine<&EngineOptions::ring>, 1, kBatches},
      {"tile_tokens", of_engine<&EngineOptions::tile_tokens>, 0, kTokens},
      {"logits_tile_tokens", of_engine<&EngineOptions::logits_tile_tokens>, 0, kTokens},
      {"adam_beta1", of_optimizer<&OptimizerOptions::beta1>, 0, 1, below_most},
      {"adam_beta2", of_optimizer<&OptimizerOptions::beta2>, 0, 1, below_most},
      {"adam_epsilon", of_optimizer<&OptimizerOptions::epsilon>, 0, 1},
      {"weight_decay", of_optimizer<&OptimizerOptions::weight_decay>, 0, kMostFloat},
      {"max_grad_norm", of_optimizer<&OptimizerOptions::max_grad_norm>, 0, kMostFloat},
  };
  return ranges;
}

void check_ranges(const TrainOptions& options) {
  for (const OptionRange& range : option_ranges()) {
    const double value = range.value(options);
    if (!holds(range, value))
      throw ConfigError(cat("--", range.flag, " is ", number_text(value), "; expected ", range_text(range)));
  }
  if (options.max_steps <= 0 && !(options.num_train_epochs > 0))
    throw ConfigError(cat("--num_train_epochs is ", options.num_train_epochs,
                          "; expected a number above 0, or a --max_steps"));
}

void check_step_tokens(const TrainOptions& options, const std::vector<ContextStage>& stages,
                       int sharing_ranks, int64_t host_memory_bytes) {
  int64_t longest = 0;
  for (const ContextStage& stage : stages) longest = std::max(longest, stage.sequence_tokens);
  // In fp64: the product of what the table allows does not overflow there.
  constexpr double kBytesOfToken = 16;  // the token and its target
  const double tokens = static_cast<double>(longest) / sharing_ranks *
                        static_cast<double>(options.per_device_train_batch_size) *
                        static_cast<double>(options.gradient_accumulation_steps);
  if (tokens * kBytesOfToken > static_cast<double>(host_memory_bytes))
    throw ConfigError(cat("one step of a rank has ", number_text(tokens), " tokens (",
                          options.per_device_train_batch_size, " samples of --per_device_train_batch_size x ",
                          options.gradient_accumulation_steps, " of --gradient_accumulation_steps x ",
                          format_count(longest), " tokens / ", sharing_ranks,
                          " ranks), more than the machine's memory of ", format_bytes(host_memory_bytes),
                          " holds; use smaller numbers"));
}

}  // namespace trireme
