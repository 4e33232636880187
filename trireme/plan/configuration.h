// What a plan chooses: the mesh, the policies and the batch of a run, each an option of `trireme train`.
#pragma once

#include <cstdint>

#include "trireme/forecast/recompute_plan.h"
#include "trireme/memory/offload.h"

namespace trireme {

struct Configuration {
  int data_parallel = 1;  // groups of ranks that take different samples
  int ulysses = 1;
  int ring = 1;
  int zero = 0;  // ZeRO stage
  OffloadOptions offload = {};
  RecomputePlan recompute = {};
  int head_chunks = 1;
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
  int64_t batch = 1;         // samples of a micro-batch of each group
  int64_t accumulation = 1;  // micro-batches of a step

  int sequence_ranks() const { return ulysses * ring; }
  int ranks() const { return data_parallel * sequence_ranks(); }
  int64_t samples() const { return data_parallel * batch * accumulation; }
  bool operator==(const Configuration&) const = default;
};

}  // namespace trireme
