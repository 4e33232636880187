// The exchanges, named by what travels, and attention between them.
#include "trireme/attention/ulysses.h"

#include <tuple>

#include "trireme/attention/head_chunks.h"
#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/kernels/copy_all.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {

namespace {

void check(const Group& group, const UlyssesPartition& partition, const at::Tensor& x, int64_t tokens,
           int64_t heads) {
  TRIREME_ASSERT(partition.layout.ranks == group.size() && partition.heads.ranks() == group.size(),
                 "group of ", group.size(), " ranks, layout of ", partition.layout.ranks, ", head shares of ",
                 partition.heads.ranks());
  TRIREME_ASSERT(x.dim() == 4 && x.size(1) == tokens && x.size(2) == heads, "got ", x.sizes(),
                 ", expected [B, ", tokens, ", ", heads, ", D]");
}

// Key/value heads that several ranks have are sums over them, in fp32 and in rank order.
void add_of_ranks(const at::Tensor& out_BsKD, const HeadShares& heads, const std::vector<HeadsQkv>& of_rank,
                  at::Tensor HeadsQkv::*part) {
  const at::Tensor sum = at::zeros(out_BsKD.sizes(), out_BsKD.options().dtype(compute_dtype(out_BsKD)));
  for (int p = 0; p < heads.ranks(); ++p)
    sum.slice(2, heads.key_value[p].begin, heads.key_value[p].end).add_(of_rank[p].*part);
  out_BsKD.copy_(sum);
}

at::Tensor joined(const AttentionGradients& gradients) {
  return at::cat({gradients.dq, gradients.dk, gradients.dv}, 2);
}

std::vector<at::Tensor> exchange_gradients(Group& group, const UlyssesPartition& partition,
                                           const AttentionGradients& gradients) {
  const MemoryScope buffers(MemoryCategory::communication);
  return begin_to_sequence(group, partition.layout, packed_counts(partition.heads), joined(gradients)).wait();
}

// What each rank sent -> `out`, all heads of this rank's tokens.
void put_gradients(const std::vector<at::Tensor>& blocks, const HeadShares& heads, const HeadsQkv& out) {
  const MemoryScope sums(MemoryCategory::communication);
  std::vector<TensorCopy> copies;
  std::vector<HeadsQkv> of_rank;
  for (int p = 0; p < heads.ranks(); ++p) {
    const HeadRange &q = heads.query[p], &kv = heads.key_value[p];
    of_rank.push_back(split_qkv(blocks[p], q.size(), kv.size()));
    copies.push_back({out.q.slice(2, q.begin, q.end), of_rank.back().q});
    if (heads.shares_key_values()) continue;
    copies.push_back({out.k.slice(2, kv.begin, kv.end), of_rank.back().k});
    copies.push_back({out.v.slice(2, kv.begin, kv.end), of_rank.back().v});
  }
  copy_all(copies);
  if (heads.shares_key_values()) {
    add_of_ranks(out.k, heads, of_rank, &HeadsQkv::k);
    add_of_ranks(out.v, heads, of_rank, &HeadsQkv::v);
  }
}

// [B, s, heads, D]
at::Tensor empty_of_sequence(Group& group, const UlyssesPartition& partition, int64_t heads,
                             const at::Tensor& like) {
  return at::empty({like.size(0), partition.layout.size(group.rank()), heads, like.size(3)}, like.options());
}

}  // namespace

at::Tensor UlyssesAttention::exchange_qkv(at::Tensor qkv_BsND, const SequenceMask& mask) {
  return seq_to_heads_qkv(ulysses_, partition(mask), qkv_BsND);
}

HeadsQkv UlyssesAttention::exchange_parts(const HeadsQkv& parts_BsHD, const SequenceMask& mask) {
  return seq_to_heads_parts(ulysses_, partition(mask), parts_BsHD);
}

ShardedOutput UlyssesAttention::forward(at::Tensor qkv, const SequenceMask& mask) {
  HeadsQkv heads = split(std::exchange(qkv, {}));
  return forward_parts(std::move(heads), mask);
}

ShardedOutput UlyssesAttention::forward_parts(HeadsQkv heads, const SequenceMask& mask) {
  AttentionOutput by_heads = sequence_->forward(heads.q, heads.k, heads.v, spec(mask));
  heads = {};
  at::Tensor o_BsHD = heads_to_seq(ulysses_, partition(mask), by_heads.o);
  if (ulysses_.size() == 1) by_heads.o = at::Tensor();
  return {std::move(o_BsHD), std::move(by_heads.lse), std::move(by_heads.o)};
}

at::Tensor UlyssesAttention::backward(at::Tensor do_BsHD, at::Tensor qkv, ShardedOutput output,
                                      const SequenceMask& mask) {
  HeadsQkv heads = split(std::exchange(qkv, {}));
  const AttentionGradients gradients = gradients_by_heads(std::move(do_BsHD), heads, std::move(output), mask);
  heads = {};
  return heads_to_seq_qkv(ulysses_, partition(mask), gradients);
}

AttentionGradients UlyssesAttention::backward_parts(at::Tensor do_BsHD, HeadsQkv heads, ShardedOutput output,
                                                    const SequenceMask& mask) {
  const AttentionGradients gradients = gradients_by_heads(std::move(do_BsHD), heads, std::move(output), mask);
  heads = {};
  return heads_to_seq_parts(ulysses_, partition(mask), gradients);
}

AttentionGradients UlyssesAttention::gradients_by_heads(at::Tensor do_BsHD, const HeadsQkv& heads,
                                                        ShardedOutput output, const SequenceMask& mask) {
  const UlyssesPartition partition = this->partition(mask);
  AttentionOutput by_heads{std::move(output.o_BShD), std::move(output.lse_BhS)};
  at::Tensor do_BShD;
  if (by_heads.o.defined())
    do_BShD = seq_to_heads(ulysses_, partition, do_BsHD);
  else
    std::tie(do_BShD, by_heads.o) = seq_to_heads_pair(ulysses_, partition, do_BsHD, output.o_BsHD);
  do_BsHD = output.o_BsHD = at::Tensor();
  return sequence_->backward(do_BShD, heads.q, heads.k, heads.v, by_heads, spec(mask));
}

UlyssesPartition UlyssesAttention::partition(const SequenceMask& mask) const {
  return {mask.layout.within(mask.ring_index), heads_};
}

SequenceSpec UlyssesAttention::spec(const SequenceMask& mask) const {
  return {scores_, heads_.kv_of_query(ulysses_.rank()), mask};
}

HeadsQkv UlyssesAttention::split(const at::Tensor& qkv) const {
  return split_qkv(qkv, heads_.query[ulysses_.rank()].size(), heads_.key_value[ulysses_.rank()].size());
}

at::Tensor seq_to_heads_qkv(Group& group, const UlyssesPartition& partition, const at::Tensor& qkv) {
  const HeadShares& heads = partition.heads;
  check(group, partition, qkv, partition.layout.size(group.rank()),
        heads.query_heads + 2 * heads.key_value_heads);
  if (group.size() == 1) return qkv;
  const HeadsQkv all = split_qkv(qkv, heads.query_heads, heads.key_value_heads);
  return begin_qkv_to_heads(group, partition.layout, heads, all).wait();
}

HeadsQkv seq_to_heads_parts(Group& group, const UlyssesPartition& partition, const HeadsQkv& parts) {
  const HeadShares& heads = partition.heads;
  const int64_t tokens = partition.layout.size(group.rank());
  check(group, partition, parts.q, tokens, heads.query_heads);
  check(group, partition, parts.k, tokens, heads.key_value_heads);
  check(group, partition, parts.v, tokens, heads.key_value_heads);
  if (group.size() == 1) return parts;
  return split_qkv(begin_qkv_to_heads(group, partition.layout, heads, parts).wait(),
                   heads.query[group.rank()].size(), heads.key_value[group.rank()].size());
}

at::Tensor heads_to_seq_qkv(Group& group, const UlyssesPartition& partition,
                            const AttentionGradients& gradients) {
  const HeadShares& heads = partition.heads;
  check(group, partition, gradients.dq, partition.layout.tokens, heads.query[group.rank()].size());
  if (group.size() == 1) return joined(gradients);
  const std::vector<at::Tensor> blocks = exchange_gradients(group, partition, gradients);
  at::Tensor result =
      empty_of_sequence(group, partition, heads.query_heads + 2 * heads.key_value_heads, gradients.dq);
  put_gradients(blocks, heads, split_qkv(result, heads.query_heads, heads.key_value_heads));
  return result;
}

AttentionGradients heads_to_seq_parts(Group& group, const UlyssesPartition& partition,
                                      const AttentionGradients& gradients) {
  const HeadShares& heads = partition.heads;
  check(group, partition, gradients.dq, partition.layout.tokens, heads.query[group.rank()].size());
  if (group.size() == 1) return gradients;
  const std::vector<at::Tensor> blocks = exchange_gradients(group, partition, gradients);
  const auto empty = [&](int64_t count) { return empty_of_sequence(group, partition, count, gradients.dq); };
  const HeadsQkv out{empty(heads.query_heads), empty(heads.key_value_heads), empty(heads.key_value_heads)};
  put_gradients(blocks, heads, out);
  return {out.q, out.k, out.v};
}

at::Tensor heads_to_seq(Group& group, const UlyssesPartition& partition, const at::Tensor& o) {
  check(group, partition, o, partition.layout.tokens, partition.heads.query[group.rank()].size());
  if (group.size() == 1) return o;
  const auto blocks = begin_to_sequence(group, partition.layout, query_counts(partition.heads), o).wait();
  return at::cat(blocks, 2);
}

at::Tensor seq_to_heads(Group& group, const UlyssesPartition& partition, const at::Tensor& d_o) {
  check(group, partition, d_o, partition.layout.size(group.rank()), partition.heads.query_heads);
  if (group.size() == 1) return d_o;
  return begin_queries_to_heads(group, partition.layout, partition.heads, {d_o}).wait();
}

std::pair<at::Tensor, at::Tensor> seq_to_heads_pair(Group& group, const UlyssesPartition& partition,
                                                    const at::Tensor& d_o, const at::Tensor& o) {
  check(group, partition, d_o, partition.layout.size(group.rank()), partition.heads.query_heads);
  check(group, partition, o, d_o.size(1), d_o.size(2));
  if (group.size() == 1) return {d_o, o};
  const at::Tensor both = begin_queries_to_heads(group, partition.layout, partition.heads, {d_o, o}).wait();
  const int64_t heads = partition.heads.query[group.rank()].size();
  return {both.narrow(2, 0, heads), both.narrow(2, heads, heads)};
}

std::unique_ptr<ShardedAttention> make_sharded_attention(Group& ulysses,
                                                         std::unique_ptr<SequenceAttention> sequence,
                                                         HeadShares heads, ScoreForm scores,
                                                         int head_chunks) {
  if (head_chunks > 1)
    return make_chunked_attention(ulysses, std::move(sequence), std::move(heads), scores, head_chunks);
  return std::make_unique<UlyssesAttention>(ulysses, std::move(sequence), std::move(heads), scores);
}

}  // namespace trireme
