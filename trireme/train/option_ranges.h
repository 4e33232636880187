// The range of every number that a training run can be told, in one table; and of the products of them that something counts
// in. Beyond lie overflows, and runs that would end after they began.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/train/context_stages.h"
#include "trireme/train/train_options.h"

namespace trireme {

// Steps of a run at most: of all stages together.
inline constexpr int64_t kMostSteps = 1'000'000'000'000;
// Samples of a micro-batch, micro-batches of a step, ranks that share a sample: of each at most.
inline constexpr int64_t kMostBatches = int64_t{1} << 20;

struct OptionRange {
  const char* flag;
  double (*value)(const TrainOptions&);
  double least;
  double most;
  enum class Ends { closed, above_least, below_most } ends = Ends::closed;
};
const std::vector<OptionRange>& option_ranges();

// Throws ConfigError that names flag, value and range.
void check_ranges(const TrainOptions& options);
// Tokens that one rank holds of a step, which the loader hands over whole: ConfigError where they do not fit into the
// machine's memory. `sharing_ranks`: of one sample.
void check_step_tokens(const TrainOptions& options, const std::vector<ContextStage>& stages,
                       int sharing_ranks, int64_t host_memory_bytes);

}  // namespace trireme
