// The tokens that a rank holds of a step: the loader hands them over whole, so they must fit into its host
// memory. No torch here.
#pragma once

#include <cstdint>

namespace trireme {

struct StepTokens {
  int64_t sample_tokens = 0;
  int sharing_ranks = 1;  // of one sample
  int64_t batch = 1;      // samples of a micro-batch
  int64_t accumulation = 1;

  // In fp64: the product of what options allow does not overflow there.
  double of_rank() const;
  bool fit(int64_t host_memory_bytes) const;
};

// Throws ConfigError with the factors: they do not fit.
void check_step_tokens(const StepTokens& step, int64_t host_memory_bytes);

}  // namespace trireme
