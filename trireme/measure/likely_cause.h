// Why steps are slower than the device's matrix products allow, by name.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

struct StepShares {
  double step_seconds = 0;
  double data_seconds = 0;      // until the step's tokens were there
  double exchange_seconds = 0;  // in collectives
  double offload_seconds = 0;   // in waits for updates on the host and for a disk
  std::string attention_kernel = {};
  bool attends_by_reference = false;
  int64_t tokens_of_rank = 0;         // of a micro-batch
  int64_t attention_tokens = 0;       // of a sample
  bool copies_are_not_timed = false;  // offload between a GPU and its host
};

// One sentence without a full stop: what it is, its share where that is known, and what to do.
std::string likely_cause(const StepShares& shares);

// What others have published for a GPU of that name (the driver's), with the source; empty: nothing is known.
std::string published_training_rates(const std::string& gpu_name);

}  // namespace trireme
