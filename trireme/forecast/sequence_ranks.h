// How the forecast changes with the ranks of the run and those that share a sequence.
#pragma once

#include <optional>
#include <string>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// The same run on so many ranks, over which units are padded to equal shares (shard/unit_shares.h).
ForecastInputs with_ranks(ForecastInputs inputs, int ranks, int rank);

// The same run with ulysses x ring ranks a sequence, for the rank of index `sp_rank` among them: its heads
// and, where there is a batch, its tokens. Throws ConfigError as share_heads does.
ForecastInputs with_sequence_ranks(ForecastInputs inputs, int ulysses, int ring, int sp_rank);

// Ranks of its machine with which a rank exchanges directly (comm/mesh.h: connect_exchanges): the other
// Ulysses ranks; in a ring the two neighbours, which count as one: it receives from one and sends to the
// other; and what MeshExchanges names. Where keys are gathered, all of a ring: uneven shares of their gradients
// go to each directly.
int machine_peers(const ForecastInputs& inputs);
// NCCL's buffers for them, in a plan.
int64_t peer_buffers_of_rank_bytes(const ForecastInputs& inputs);

struct MoreSequenceRanks {
  std::string option;     // what the user gives: "--ulysses 8 on 16 ranks"
  ForecastInputs inputs;  // of this rank then
};
// The next larger number of ranks a sequence: more Ulysses ranks, beyond the heads a longer ring. Where
// data-parallel ranks exist, they become sequence ranks, and accumulation keeps the samples of a step; else
// the run needs twice its ranks. nullopt where a sequence has too few tokens or no ring. `inputs` have a
// batch.
std::optional<MoreSequenceRanks> more_sequence_ranks(const ForecastInputs& inputs);

}  // namespace trireme
