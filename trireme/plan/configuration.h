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
  Offload offload_parameters = Offload::none;
  Offload offload_optimizer = Offload::none;
  Offload offload_activations = Offload::none;
  Recompute recompute = Recompute::full;
  int64_t keeping_layers = 0;  // the last ones, that keep what `recompute` says; 0 with full
  int64_t qkv_layers = 0;      // with keep_attention: that keep these parts too (KeptPart)
  int64_t mlp_layers = 0;
  int64_t checkpoint_every = 1;  // layers of a group that keeps one input
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
