// Every configuration that a search looks at:
//
//   mesh             dp x ulysses x ring = devices; ulysses at most the heads, a token for each rank
//   ZeRO             0 to 3
//   offload          of parameters (ZeRO 3), optimizer, activations: none, the host, a disk if it is allowed
//   recompute        what is worth most a byte on as many of the last layers as fit (forecast/keep_order.h),
//                    with the input of every layer, of every second, third ... (forecast/choose_recompute.h)
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

// Configurations that differ in what layers keep alone: positions of `order`, one where there is none, with
// layers in groups of recompute.checkpoint_every up to `most_of_group`.
struct Candidate {
  Configuration configuration;  // with `most_keeping`, in the smallest groups
  std::optional<KeepOrder> order = std::nullopt;
  int64_t least_keeping = 0;
  int64_t most_keeping = 0;
  int64_t most_of_group = 1;

  // With what `position` of the order keeps, in the smallest groups.
  Configuration keeping(int64_t position) const;
  // The configurations in groups of so many layers.
  Candidate in_groups(int64_t layers_of_group) const;
};

std::vector<Candidate> list_candidates(const PlanRequest& request, int devices, int64_t tokens);

}  // namespace trireme
