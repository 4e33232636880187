#include "trireme/attention/head_chunks.h"

#include <optional>

#include "trireme/device/memory_account.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {

namespace {

// k and v of a chunk: those that stayed from the one before, and those that came.
class KeyValueHeads {
 public:
  // [q | k | v] of the chunk as it came -> all that it needs.
  HeadsQkv take(const at::Tensor& arrived, const HeadChunk& chunk, size_t rank) {
    const int64_t fresh = chunk.arriving.key_value[rank].size(), needed = chunk.needed.key_value[rank].size();
    HeadsQkv heads = split_qkv(arrived, chunk.needed.query[rank].size(), fresh);
    if (needed > fresh) {  // the first one is the last of the chunk before
      heads.k = at::cat({last_k_, heads.k}, 2);
      heads.v = at::cat({last_v_, heads.v}, 2);
    }
    if (needed > 0) {  // copies: a view would keep the whole chunk's buffer
      last_k_ = heads.k.narrow(2, needed - 1, 1).clone();
      last_v_ = heads.v.narrow(2, needed - 1, 1).clone();
    }
    return heads;
  }

 private:
  at::Tensor last_k_, last_v_;
};

// dk and dv, in fp32, of a head whose queries go on in the next chunk.
class StayingGradients {
 public:
  static bool come_of(const HeadChunk& chunk, size_t rank) {
    return chunk.leaving.key_value[rank].size() < chunk.needed.key_value[rank].size();
  }
  bool any() const { return dk_.defined(); }
  // -> [dq | dk | dv] that leave with the chunk, in `dtype`: with what stayed, and without what stays.
  at::Tensor take(const AttentionGradients& gradients, const HeadChunk& chunk, size_t rank,
                  at::ScalarType dtype) {
    const int64_t needed = chunk.needed.key_value[rank].size(),
                  leaving = chunk.leaving.key_value[rank].size();
    if (any() && needed > 0) {
      gradients.dk.narrow(2, 0, 1).add_(std::exchange(dk_, {}));
      gradients.dv.narrow(2, 0, 1).add_(std::exchange(dv_, {}));
    }
    if (come_of(chunk, rank)) {
      dk_ = gradients.dk.narrow(2, leaving, 1).clone();
      dv_ = gradients.dv.narrow(2, leaving, 1).clone();
    }
    const int64_t queries = gradients.dq.size(2);
    std::vector<int64_t> sizes = gradients.dq.sizes().vec();
    sizes[2] = queries + 2 * leaving;
    at::Tensor joined = at::empty(sizes, gradients.dq.options().dtype(dtype));
    joined.narrow(2, 0, queries).copy_(gradients.dq);
    joined.narrow(2, queries, leaving).copy_(gradients.dk.narrow(2, 0, leaving));
    joined.narrow(2, queries + leaving, leaving).copy_(gradients.dv.narrow(2, 0, leaving));
    return joined;
  }

 private:
  at::Tensor dk_, dv_;
};

class ChunkedAttention final : public ShardedAttention {
 public:
  ChunkedAttention(Group& ulysses, std::unique_ptr<SequenceAttention> sequence, HeadShares heads,
                   ScoreForm scores, int head_chunks)
      : ShardedAttention(ulysses, std::move(sequence), std::move(heads), scores),
        rank_(static_cast<size_t>(ulysses.rank())),
        chunks_(cut_heads(heads_, head_chunks)) {}

  at::Tensor exchange_qkv(at::Tensor qkv_BsND, const SequenceMask& /*mask*/) override { return qkv_BsND; }

  ShardedOutput forward(at::Tensor qkv, const SequenceMask& mask) override {
    const SequenceLayout layout = mask.layout.within(mask.ring_index);
    const HeadRange share = heads_.query[rank_];
    const int64_t batch = qkv.size(0), width = qkv.size(3);
    const at::Tensor o = at::empty({batch, qkv.size(1), heads_.query_heads, width}, qkv.options());
    const at::Tensor lse =
        at::empty({batch, share.size(), layout.tokens}, qkv.options().dtype(compute_dtype(qkv)));
    const auto write_o = [&](const HeadChunk& chunk, ToSequence& under_way) {
      const std::vector<at::Tensor> blocks = under_way.wait();
      for (size_t p = 0; p < blocks.size(); ++p) {
        const HeadRange& query = chunk.needed.query[p];
        o.slice(2, query.begin, query.end).copy_(blocks[p]);
      }
    };
    KeyValueHeads key_values;
    const HeadsQkv all = split_all(qkv);
    const auto begin_qkv = [&](const HeadChunk& chunk) {
      return begin_qkv_to_heads(ulysses_, layout, chunk.arriving, all);
    };
    std::optional<ToHeads> next(begin_qkv(chunks_.front()));
    std::optional<ToSequence> before;
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const at::Tensor arrived = next->wait();
      next.reset();
      if (c + 1 < chunks_.size()) next.emplace(begin_qkv(chunks_[c + 1]));
      const HeadsQkv heads = key_values.take(arrived, chunks_[c], rank_);
      const AttentionOutput out = sequence_->forward(heads.q, heads.k, heads.v, spec(chunks_[c], mask));
      const HeadRange& query = chunks_[c].needed.query[rank_];
      lse.slice(1, query.begin - share.begin, query.end - share.begin).copy_(out.lse);
      ToSequence to_sequence = begin_to_sequence(ulysses_, layout, query_counts(chunks_[c].needed), out.o);
      if (before) write_o(chunks_[c - 1], *before);
      before.emplace(std::move(to_sequence));
    }
    write_o(chunks_.back(), *before);
    return {o, lse, {}};
  }

  at::Tensor backward(at::Tensor do_BsHD, at::Tensor qkv, ShardedOutput output,
                      const SequenceMask& mask) override {
    const SequenceLayout layout = mask.layout.within(mask.ring_index);
    const HeadRange share = heads_.query[rank_];
    const int64_t H = heads_.query_heads, K = heads_.key_value_heads;
    at::Tensor dqkv = at::empty_like(qkv);
    // A key/value head that several ranks use is summed in fp32 in the order of chunks and ranks.
    const at::Tensor dkv = [&] {
      const MemoryScope scope(MemoryCategory::communication);
      return at::zeros({qkv.size(0), qkv.size(1), 2 * K, qkv.size(3)},
                       qkv.options().dtype(compute_dtype(qkv)));
    }();
    const auto add_gradients = [&](const HeadChunk& chunk, ToSequence& under_way) {
      const std::vector<at::Tensor> blocks = under_way.wait();
      for (size_t p = 0; p < blocks.size(); ++p) {
        const HeadRange &q = chunk.leaving.query[p], &kv = chunk.leaving.key_value[p];
        const HeadsQkv block = split_qkv(blocks[p], q.size(), kv.size());
        dqkv.slice(2, q.begin, q.end).copy_(block.q);
        dkv.slice(2, kv.begin, kv.end).add_(block.k);
        dkv.slice(2, K + kv.begin, K + kv.end).add_(block.v);
      }
    };
    KeyValueHeads key_values;
    StayingGradients staying;
    const HeadsQkv all = split_all(qkv);
    std::optional<ToHeads> next_qkv, next_pair;
    const auto begin_chunk = [&](const HeadChunk& chunk) {
      next_qkv.emplace(begin_qkv_to_heads(ulysses_, layout, chunk.arriving, all));
      next_pair.emplace(begin_queries_to_heads(ulysses_, layout, chunk.needed, {do_BsHD, output.o_BsHD}));
    };
    begin_chunk(chunks_.front());
    std::optional<ToSequence> before;
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const at::Tensor arrived = next_qkv->wait(), pair = next_pair->wait();
      next_qkv.reset();
      next_pair.reset();
      if (c + 1 < chunks_.size()) begin_chunk(chunks_[c + 1]);
      const HeadChunk& chunk = chunks_[c];
      const HeadsQkv heads = key_values.take(arrived, chunk, rank_);
      const HeadRange& query = chunk.needed.query[rank_];
      SequenceSpec spec = this->spec(chunk, mask);
      spec.gradients = StayingGradients::come_of(chunk, rank_) || staying.any() ? ResultDtype::fp32
                                                                                : ResultDtype::of_input;
      const AttentionGradients gradients =
          sequence_->backward(pair.narrow(2, 0, query.size()), heads.q, heads.k, heads.v,
                              {pair.narrow(2, query.size(), query.size()),
                               output.lse_BhS.slice(1, query.begin - share.begin, query.end - share.begin)},
                              spec);
      ToSequence to_sequence = begin_to_sequence(ulysses_, layout, packed_counts(chunk.leaving),
                                                 staying.take(gradients, chunk, rank_, qkv.scalar_type()));
      if (before) add_gradients(chunks_[c - 1], *before);
      before.emplace(std::move(to_sequence));
    }
    add_gradients(chunks_.back(), *before);
    dqkv.narrow(2, H, 2 * K).copy_(dkv);
    return dqkv;
  }

 private:
  HeadsQkv split_all(const at::Tensor& qkv_BsND) const {
    return split_qkv(qkv_BsND, heads_.query_heads, heads_.key_value_heads);
  }
  SequenceSpec spec(const HeadChunk& chunk, const SequenceMask& mask) const {
    return {scores_, chunk.needed.kv_of_query(ulysses_.rank()), mask};
  }

  size_t rank_;
  std::vector<HeadChunk> chunks_;
};

}  // namespace

std::unique_ptr<ShardedAttention> make_chunked_attention(Group& ulysses,
                                                         std::unique_ptr<SequenceAttention> sequence,
                                                         HeadShares heads, ScoreForm scores,
                                                         int head_chunks) {
  return std::make_unique<ChunkedAttention>(ulysses, std::move(sequence), std::move(heads), scores,
                                            head_chunks);
}

}  // namespace trireme
