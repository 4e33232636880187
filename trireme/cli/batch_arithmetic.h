// Samples of a step: train_batch_size = micro-batch x accumulation x data-parallel groups, where a group is
// the ranks that share one sample (ulysses x ring). Of the three numbers one may be left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

struct BatchNumber {
  int64_t value = 0;
  std::string name;  // by which it was given: "train_batch_size", "--gradient_accumulation_steps"
};

struct BatchNumbers {
  std::optional<BatchNumber> train;         // samples of a step
  std::optional<BatchNumber> micro;         // of a micro-batch of one group
  std::optional<BatchNumber> accumulation;  // micro-batches of a step
};

struct RunRanks {
  int64_t ranks = 1;
  int64_t degree = 1;  // ranks that share a sample; divides `ranks`
  int64_t groups() const { return ranks / degree; }
};

struct Batch {
  int64_t micro = 1;
  int64_t accumulation = 1;
};

// With `train`: the micro-batch and accumulation of this run; where both are left out, accumulation is 1, as
// in DeepSpeed. Throws ConfigError that shows the arithmetic and the fix: a contradiction, a number that the
// others do not divide, with the nearest that they do.
Batch resolve_batch(const BatchNumbers& given, const RunRanks& run, const std::string& file);

// "gradient_accumulation_steps 4 x 2 data-parallel groups (16 ranks / 8 that share a sample)"
std::string batch_factors_text(const BatchNumbers& given, const RunRanks& run);

// The train_batch_size that is right for the others: their product, or the nearest multiple; nullopt where
// `given` has none or is right.
std::optional<int64_t> mended_train_batch(const BatchNumbers& given, const RunRanks& run);

}  // namespace trireme
