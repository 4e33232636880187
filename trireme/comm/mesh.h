// The named axes of a run: dp (data parallel) x ring x ulysses; sp = ring x ulysses holds one sample's
// sequence. Ulysses ranks are neighbours (same machine first): rank = (dp index x R + ring index) x U +
// ulysses index. Parameters are replicated or sharded over `all` = dp x sp.
#pragma once

#include <memory>

#include "trireme/base/sample_layout.h"
#include "trireme/comm/world.h"

namespace trireme {

// Beside those of Ulysses and of the ring.
struct MeshExchanges {
  bool columns = false;         // of DeltaNets, between all pairs that hold a sample
  bool gathered_keys = false;   // whose gradients go between all pairs of a ring (attention/gathered_keys.h)
  bool blocks_of_sums = false;  // of gradients in 16 bits, between all pairs (comm/collectives.h)
};

struct Mesh {
  std::unique_ptr<Group> all;      // dp x sp: every rank of the run
  std::unique_ptr<Group> sp;       // the ranks that hold one sample
  std::unique_ptr<Group> ulysses;  // of one ring index: they trade sequence for heads
  std::unique_ptr<Group> ring;     // of one ulysses index: they hold the same heads of other tokens
  int dp_size = 1;                 // samples at once
  int dp_index = 0;
  MeshExchanges exchanges;
};

// Throws ConfigError that lists the valid degrees unless ulysses x ring divides the number of ranks.
void check_degrees(int64_t ulysses, int64_t ring, int ranks);

// Collective. Throws ConfigError like check_degrees().
Mesh make_mesh(World& world, const SequenceDegrees& shape, const MeshExchanges& exchanges = {});

// NCCL connects two ranks, and takes memory of their GPUs, at their first exchange. This lets those that will
// exchange (all pairs of Ulysses ranks, neighbours in the ring, Mesh::exchanges) do so with a byte, so that
// what is left can be planned with. Nothing with other libraries. Collective.
void connect_exchanges(const Mesh& mesh, at::Device device);

}  // namespace trireme
