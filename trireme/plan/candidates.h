// Every configuration that a search looks at:
//
//   mesh             dp x ulysses x ring = devices; ulysses at most the heads, a token for each rank
//   ZeRO             0 to 3
//   offload          of parameters (ZeRO 3), optimizer, activations: none, the host, a disk if it is allowed
//   recompute        what is worth most a byte on as many of the last layers as fit (forecast/keep_order.h)
//   head chunks      1, 2, 4
//   tiles            by rule, and half of it
//   batch            micro-batch x accumulation that make the samples of a step
//
// What is pinned has one value. The rules are those of engine/check_options.h.
#pragma once

#include <optional>
#include <vector>

#include "trireme/forecast/keep_order.h"
#include "trireme/plan/plan_request.h"

namespace trireme {

// Configurations that differ in what layers keep alone: positions of `order`. One where there is none.
struct Candidate {
  Configuration configuration;  // with `most_keeping`
  std::optional<KeepOrder> order = std::nullopt;
  int64_t least_keeping = 0;
  int64_t most_keeping = 0;

  Configuration keeping(int64_t position) const;
};

std::vector<Candidate> list_candidates(const PlanRequest& request, int devices, int64_t tokens);

// Throws ConfigError that says what to give instead: devices that are no whole machines, degrees that do not
// divide them, more devices than heads x ring x samples allow, fewer tokens than ranks.
void check_request(const PlanRequest& request, int devices, int64_t tokens);

}  // namespace trireme
