#include "trireme/forecast/sequence_ranks.h"

#include <algorithm>

#include "trireme/attention/head_shares.h"
#include "trireme/base/error.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {
namespace {

int least_divisor(int number) {
  for (int divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return divisor;
  return number;
}

}  // namespace

ForecastInputs with_ranks(ForecastInputs inputs, int ranks, int rank) {
  inputs.ranks = ranks;
  inputs.rank = rank;
  for (int64_t& elements : inputs.model.unit_elements) elements = padded_elements(elements, ranks);
  if (inputs.model.adapters)
    for (int64_t& elements : inputs.model.adapters->unit_elements)
      elements = padded_elements(elements, ranks);
  return inputs;
}

ForecastInputs with_sequence_ranks(ForecastInputs inputs, int ulysses, int ring, int sp_rank) {
  inputs.ulysses = ulysses;
  inputs.ring = ring;
  inputs.sp_rank = sp_rank;
  const HeadShares heads = share_heads(inputs.model.heads, inputs.model.kv_heads, ulysses);
  const auto rank = static_cast<size_t>(sp_rank % ulysses);
  inputs.rank_heads = heads.query[rank].size();
  inputs.rank_kv_heads = heads.key_value[rank].size();
  inputs.packed_heads = 0;
  for (size_t each = 0; each < heads.query.size(); ++each)
    inputs.packed_heads += heads.query[each].size() + 2 * heads.key_value[each].size();
  return inputs.tokens > 0 ? with_batch(inputs, inputs.batch, inputs.tokens) : inputs;
}

int machine_peers(const ForecastInputs& inputs) {
  const auto pairs = [&](int ranks) { return std::min(ranks, inputs.machine_ranks) - 1; };
  const int rings = std::min(inputs.ring, inputs.machine_ranks / inputs.ulysses);
  const int of_ring = rings > 1 ? (inputs.gathers_keys ? rings - 1 : 1) : 0;
  int peers = pairs(inputs.ulysses) + of_ring;
  // A DeltaNet's columns, on the communicator of an axis that covers the sample or on one of their own.
  if (inputs.model.delta_net) {
    const int columns = pairs(inputs.ulysses * inputs.ring);
    peers = inputs.ulysses == 1 || inputs.ring == 1 ? columns : peers + columns;
  }
  if (inputs.reduce_bytes < kFloat_bytes) peers += pairs(inputs.ranks);  // blocks of sums
  return peers;
}

int64_t peer_buffers_of_rank_bytes(const ForecastInputs& inputs) {
  return machine_peers(inputs) * inputs.peer_buffers_bytes;
}

std::optional<MoreSequenceRanks> more_sequence_ranks(const ForecastInputs& inputs) {
  const int groups = inputs.ranks / (inputs.ulysses * inputs.ring);  // that take different samples
  const int times = groups > 1 ? least_divisor(groups) : 2;
  const int64_t more_ulysses = int64_t{inputs.ulysses} * times;
  const bool by_heads = more_ulysses <= inputs.model.heads &&
                        inputs.head_chunks <= most_heads_of_rank(inputs.model.heads, more_ulysses);
  const int ulysses = inputs.ulysses * (by_heads ? times : 1), ring = inputs.ring * (by_heads ? 1 : times);
  if ((ring > 1 && !inputs.ring_possible) || inputs.tokens < int64_t{ulysses} * ring) return std::nullopt;

  MoreSequenceRanks more;
  more.option = by_heads ? cat("--ulysses ", ulysses) : cat("--ring ", ring);
  ForecastInputs then = inputs;
  if (groups == 1) {
    then = with_ranks(then, then.ranks * times, then.rank);
    more.option += cat(" on ", then.ranks, " ranks");
  } else if (inputs.update_in_backward) {
    more.option += cat(" of these ", inputs.ranks, " ranks (1/", times, " of the samples a step)");
  } else {
    more.option += cat(" of these ", inputs.ranks, " ranks with ", times,
                       " times the --gradient_accumulation_steps (as many samples a step)");
  }
  more.inputs = with_sequence_ranks(then, ulysses, ring, then.rank % (ulysses * ring));
  return more;
}

}  // namespace trireme
