#include "trireme/attention/head_chunks.h"

#include <optional>

#include "trireme/attention/head_exchange.h"
#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"

namespace trireme {

namespace {

// The exchanges of one call, for any round.
class Rounds {
 public:
  Rounds(const ShardedAttention& over, const HeadShares& heads, const SequenceSpec& spec)
      : group_(over.ulysses),
        layout_(spec.layout.within(over.attention.place())),
        heads_(heads),
        chunks_(cut_heads(heads, over.head_chunks)) {}

  const std::vector<HeadChunk>& chunks() const { return chunks_; }
  HeadRange query(size_t round) const { return chunks_[round].needed.query[rank()]; }
  std::vector<int> kv_of_query(size_t round) const {
    return chunks_[round].needed.kv_of_query(static_cast<int>(rank()));
  }
  size_t rank() const { return static_cast<size_t>(group_.rank()); }

  // q and the arriving k and v of a round.
  ToHeads begin_qkv(size_t round, const at::Tensor& qkv) {
    const HeadShares& heads = chunks_[round].arriving;
    const int64_t H = heads_.query_heads, K = heads_.key_value_heads;
    std::vector<std::vector<at::Tensor>> slices;
    slices.reserve(heads.query.size());
    for (size_t p = 0; p < heads.query.size(); ++p) {
      const HeadRange &q = heads.query[p], &kv = heads.key_value[p];
      slices.push_back({qkv.slice(2, q.begin, q.end), qkv.slice(2, H + kv.begin, H + kv.end),
                        qkv.slice(2, H + K + kv.begin, H + K + kv.end)});
    }
    return begin_exchange_to_heads(group_, layout_, packed_counts(heads), slices);
  }
  // do and o of a round.
  ToHeads begin_pair(size_t round, const at::Tensor& d_o, const at::Tensor& o) {
    std::vector<std::vector<at::Tensor>> slices;
    std::vector<int64_t> counts = query_counts(chunks_[round].needed);
    slices.reserve(counts.size());
    for (int64_t& count : counts) count *= 2;
    for (const HeadRange& q : chunks_[round].needed.query)
      slices.push_back({d_o.slice(2, q.begin, q.end), o.slice(2, q.begin, q.end)});
    return begin_exchange_to_heads(group_, layout_, counts, slices);
  }
  ToSequence begin_o(size_t round, const at::Tensor& o) {
    return begin_exchange_to_sequence(group_, layout_, query_counts(chunks_[round].needed), o);
  }
  ToSequence begin_gradients(size_t round, const at::Tensor& dqkv) {
    return begin_exchange_to_sequence(group_, layout_, packed_counts(chunks_[round].leaving), dqkv);
  }

 private:
  Group& group_;
  SequenceLayout layout_;
  const HeadShares& heads_;
  std::vector<HeadChunk> chunks_;
};

// k and v of a round: those that stayed from the one before, and those that came.
class KeyValueHeads {
 public:
  // [q | k | v] of the round as it came -> all that it needs.
  HeadsQkv take(const at::Tensor& arrived, const HeadChunk& chunk, size_t rank) {
    const int64_t queries = chunk.needed.query[rank].size(), fresh = chunk.arriving.key_value[rank].size();
    const HeadRange& needed = chunk.needed.key_value[rank];
    HeadsQkv heads{arrived.narrow(2, 0, queries), arrived.narrow(2, queries, fresh),
                   arrived.narrow(2, queries + fresh, fresh)};
    if (needed.size() > fresh) {  // the first one is the last of the round before
      heads.k = at::cat({last_k_, heads.k}, 2);
      heads.v = at::cat({last_v_, heads.v}, 2);
    }
    if (needed.size() > 0) {  // copies: a view would keep the whole round's buffer
      last_k_ = heads.k.narrow(2, needed.size() - 1, 1).clone();
      last_v_ = heads.v.narrow(2, needed.size() - 1, 1).clone();
    }
    return heads;
  }

 private:
  at::Tensor last_k_, last_v_;
};

}  // namespace

std::vector<HeadChunk> cut_heads(const HeadShares& heads, int chunks) {
  TRIREME_ASSERT(chunks >= 1, "head chunks: got ", chunks);
  const int64_t group = heads.query_heads / heads.key_value_heads;
  const HeadShares none{heads.query_heads, heads.key_value_heads, {}, {}};
  std::vector<HeadChunk> cut(static_cast<size_t>(chunks), HeadChunk{none, none, none});
  for (const HeadRange& share : heads.query) {
    const SequenceLayout parts{share.size(), chunks};
    for (int c = 0; c < chunks; ++c) {
      const HeadRange query{share.begin + parts.begin(c), share.begin + parts.begin(c + 1)};
      HeadRange needed{query.begin / group,
                       query.size() > 0 ? (query.end - 1) / group + 1 : query.begin / group};
      HeadRange arriving = needed, leaving = needed;
      if (query.size() > 0) {
        if (query.begin > share.begin && (query.begin - 1) / group == needed.begin) ++arriving.begin;
        if (query.end < share.end && query.end / group == needed.end - 1) --leaving.end;
      }
      HeadChunk& chunk = cut[static_cast<size_t>(c)];
      for (HeadShares* shares : {&chunk.needed, &chunk.arriving, &chunk.leaving})
        shares->query.push_back(query);
      chunk.needed.key_value.push_back(needed);
      chunk.arriving.key_value.push_back(arriving);
      chunk.leaving.key_value.push_back(leaving);
    }
  }
  return cut;
}

UlyssesAttention chunked_attention_forward(const ShardedAttention& over, const HeadShares& heads,
                                           SequenceSpec spec, const at::Tensor& qkv) {
  Rounds rounds(over, heads, spec);
  const HeadRange mine = heads.query[rounds.rank()];
  const int64_t batch = qkv.size(0), width = qkv.size(3);
  const int64_t tokens = spec.layout.ring_tokens(over.attention.place());
  UlyssesAttention result{at::empty({batch, qkv.size(1), heads.query_heads, width}, qkv.options()),
                          at::empty({batch, mine.size(), tokens}, qkv.options().dtype(at::kFloat))};
  const auto place_o = [&](size_t round, ToSequence& under_way) {
    const std::vector<at::Tensor> blocks = under_way.wait();
    for (size_t p = 0; p < blocks.size(); ++p) {
      const HeadRange& query = rounds.chunks()[round].needed.query[p];
      result.o.slice(2, query.begin, query.end).copy_(blocks[p]);
    }
  };
  KeyValueHeads key_values;
  std::optional<ToHeads> next(rounds.begin_qkv(0, qkv));
  std::optional<ToSequence> before;
  for (size_t round = 0; round < rounds.chunks().size(); ++round) {
    const at::Tensor arrived = next->wait();
    next.reset();
    if (round + 1 < rounds.chunks().size()) next.emplace(rounds.begin_qkv(round + 1, qkv));
    const HeadsQkv here = key_values.take(arrived, rounds.chunks()[round], rounds.rank());
    spec.kv_of_query = rounds.kv_of_query(round);
    const AttentionOutput out = over.attention.forward(here.q, here.k, here.v, spec);
    const HeadRange query = rounds.query(round);
    result.lse.slice(1, query.begin - mine.begin, query.end - mine.begin).copy_(out.lse);
    ToSequence o = rounds.begin_o(round, out.o);
    if (before) place_o(round - 1, *before);
    before.emplace(std::move(o));
  }
  place_o(rounds.chunks().size() - 1, *before);
  return result;
}

at::Tensor chunked_attention_backward(const ShardedAttention& over, const HeadShares& heads,
                                      SequenceSpec spec, const at::Tensor& d_o, const at::Tensor& qkv,
                                      const UlyssesAttention& saved) {
  Rounds rounds(over, heads, spec);
  const HeadRange mine = heads.query[rounds.rank()];
  const int64_t H = heads.query_heads, K = heads.key_value_heads;
  at::Tensor dqkv = at::empty_like(qkv);
  // A key/value head that several ranks use is summed in fp32 in the order of rounds and ranks.
  const auto sum_dtype = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor dkv = [&] {
    const MemoryScope scope(MemoryCategory::communication);
    return at::zeros({qkv.size(0), qkv.size(1), 2 * K, qkv.size(3)}, qkv.options().dtype(sum_dtype));
  }();
  const auto place_gradients = [&](size_t round, ToSequence& under_way) {
    const HeadShares& leaving = rounds.chunks()[round].leaving;
    const std::vector<at::Tensor> blocks = under_way.wait();
    for (size_t p = 0; p < blocks.size(); ++p) {
      const HeadRange &q = leaving.query[p], &kv = leaving.key_value[p];
      dqkv.slice(2, q.begin, q.end).copy_(blocks[p].narrow(2, 0, q.size()));
      dkv.slice(2, kv.begin, kv.end).add_(blocks[p].narrow(2, q.size(), kv.size()));
      dkv.slice(2, K + kv.begin, K + kv.end).add_(blocks[p].narrow(2, q.size() + kv.size(), kv.size()));
    }
  };
  KeyValueHeads key_values;
  at::Tensor staying_dk, staying_dv;  // fp32, of a head whose queries go on in the next round
  std::optional<ToHeads> next_qkv(rounds.begin_qkv(0, qkv)), next_pair(rounds.begin_pair(0, d_o, saved.o));
  std::optional<ToSequence> before;
  for (size_t round = 0; round < rounds.chunks().size(); ++round) {
    const at::Tensor arrived = next_qkv->wait(), pair = next_pair->wait();
    next_qkv.reset();
    next_pair.reset();
    if (round + 1 < rounds.chunks().size()) {
      next_qkv.emplace(rounds.begin_qkv(round + 1, qkv));
      next_pair.emplace(rounds.begin_pair(round + 1, d_o, saved.o));
    }
    const HeadChunk& chunk = rounds.chunks()[round];
    const HeadsQkv here = key_values.take(arrived, chunk, rounds.rank());
    const HeadRange query = rounds.query(round);
    const HeadRange &needed = chunk.needed.key_value[rounds.rank()],
                    &leaving = chunk.leaving.key_value[rounds.rank()];
    spec.kv_of_query = rounds.kv_of_query(round);
    const bool stays = leaving.size() < needed.size();
    spec.gradients = stays || staying_dk.defined() ? ResultDtype::fp32 : ResultDtype::of_input;
    const AttentionGradients gradients =
        over.attention.backward(pair.narrow(2, 0, query.size()), here.q, here.k, here.v,
                                {pair.narrow(2, query.size(), query.size()),
                                 saved.lse.slice(1, query.begin - mine.begin, query.end - mine.begin)},
                                spec);
    if (staying_dk.defined() && needed.size() > 0) {
      gradients.dk.narrow(2, 0, 1).add_(std::exchange(staying_dk, {}));
      gradients.dv.narrow(2, 0, 1).add_(std::exchange(staying_dv, {}));
    }
    if (stays) {
      staying_dk = gradients.dk.narrow(2, leaving.size(), 1).clone();
      staying_dv = gradients.dv.narrow(2, leaving.size(), 1).clone();
    }
    const at::Tensor joined = at::cat(
        {gradients.dq, gradients.dk.narrow(2, 0, leaving.size()), gradients.dv.narrow(2, 0, leaving.size())},
        2);
    ToSequence under_way = rounds.begin_gradients(round, joined.to(qkv.scalar_type()));
    if (before) place_gradients(round - 1, *before);
    before.emplace(std::move(under_way));
  }
  place_gradients(rounds.chunks().size() - 1, *before);
  dqkv.narrow(2, H, 2 * K).copy_(dkv);
  return dqkv;
}

}  // namespace trireme
