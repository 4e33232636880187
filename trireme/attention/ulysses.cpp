// The exchanges, named by what travels, and attention between them.
#include "trireme/attention/ulysses.h"

#include "trireme/attention/head_chunks.h"
#include "trireme/attention/head_exchange.h"
#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"

namespace trireme {

namespace {

void check(const Group& group, const UlyssesShape& shape, const at::Tensor& x, int64_t tokens,
           int64_t heads) {
  TRIREME_ASSERT(shape.layout.ranks == group.size() && shape.heads.ranks() == group.size(), "group of ",
                 group.size(), " ranks, layout of ", shape.layout.ranks, ", head shares of ",
                 shape.heads.ranks());
  TRIREME_ASSERT(x.dim() == 4 && x.size(1) == tokens && x.size(2) == heads, "got ", x.sizes(),
                 ", expected [B, ", tokens, ", ", heads, ", D]");
}

HeadsQkv split_qkv(const at::Tensor& x, int64_t q_heads, int64_t kv_heads) {
  return {x.narrow(2, 0, q_heads), x.narrow(2, q_heads, kv_heads), x.narrow(2, q_heads + kv_heads, kv_heads)};
}

}  // namespace

HeadsQkv seq_to_heads_qkv(Group& group, const UlyssesShape& shape, const at::Tensor& qkv) {
  const HeadShares& heads = shape.heads;
  check(group, shape, qkv, shape.layout.size(group.rank()), heads.query_heads + 2 * heads.key_value_heads);
  if (group.size() == 1) return split_qkv(qkv, heads.query_heads, heads.key_value_heads);
  const HeadsQkv all = split_qkv(qkv, heads.query_heads, heads.key_value_heads);
  std::vector<std::vector<at::Tensor>> slices;
  for (int p = 0; p < group.size(); ++p) {
    const HeadRange &q = heads.query[p], &kv = heads.key_value[p];
    slices.push_back(
        {all.q.slice(2, q.begin, q.end), all.k.slice(2, kv.begin, kv.end), all.v.slice(2, kv.begin, kv.end)});
  }
  const at::Tensor mine = exchange_to_heads(group, shape.layout, packed_counts(heads), slices);
  return split_qkv(mine, heads.query[group.rank()].size(), heads.key_value[group.rank()].size());
}

at::Tensor heads_to_seq_qkv(Group& group, const UlyssesShape& shape, const AttentionGradients& gradients) {
  const HeadShares& heads = shape.heads;
  check(group, shape, gradients.dq, shape.layout.tokens, heads.query[group.rank()].size());
  const auto joined = [&] { return at::cat({gradients.dq, gradients.dk, gradients.dv}, 2); };
  if (group.size() == 1) return joined();
  const MemoryPlace caller = MemoryScope::here();
  const MemoryScope buffers(MemoryCategory::communication);
  const auto blocks = exchange_to_sequence(group, shape.layout, packed_counts(heads), joined());
  const int64_t all = heads.query_heads + 2 * heads.key_value_heads;
  const auto options = gradients.dq.options();
  at::Tensor result = [&] {
    const MemoryScope own(caller);
    return at::empty({gradients.dq.size(0), shape.layout.size(group.rank()), all, gradients.dq.size(3)},
                     options);
  }();
  const auto sum_type = result.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const HeadsQkv out = split_qkv(result, heads.query_heads, heads.key_value_heads);
  const at::Tensor dk = at::zeros(out.k.sizes(), options.dtype(sum_type)), dv = at::zeros_like(dk);
  for (int p = 0; p < group.size(); ++p) {
    const HeadRange &q = heads.query[p], &kv = heads.key_value[p];
    const HeadsQkv block = split_qkv(blocks[p], q.size(), kv.size());
    out.q.slice(2, q.begin, q.end).copy_(block.q);
    dk.slice(2, kv.begin, kv.end).add_(block.k);
    dv.slice(2, kv.begin, kv.end).add_(block.v);
  }
  out.k.copy_(dk);
  out.v.copy_(dv);
  return result;
}

at::Tensor heads_to_seq(Group& group, const UlyssesShape& shape, const at::Tensor& o) {
  check(group, shape, o, shape.layout.tokens, shape.heads.query[group.rank()].size());
  if (group.size() == 1) return o;
  return at::cat(exchange_to_sequence(group, shape.layout, query_counts(shape.heads), o), 2);
}

at::Tensor seq_to_heads(Group& group, const UlyssesShape& shape, const at::Tensor& d_o) {
  check(group, shape, d_o, shape.layout.size(group.rank()), shape.heads.query_heads);
  if (group.size() == 1) return d_o;
  std::vector<std::vector<at::Tensor>> slices;
  for (const HeadRange& query : shape.heads.query) slices.push_back({d_o.slice(2, query.begin, query.end)});
  return exchange_to_heads(group, shape.layout, query_counts(shape.heads), slices);
}

std::pair<at::Tensor, at::Tensor> seq_to_heads_pair(Group& group, const UlyssesShape& shape,
                                                    const at::Tensor& d_o, const at::Tensor& o) {
  check(group, shape, d_o, shape.layout.size(group.rank()), shape.heads.query_heads);
  check(group, shape, o, d_o.size(1), d_o.size(2));
  if (group.size() == 1) return {d_o, o};
  std::vector<std::vector<at::Tensor>> slices;
  for (const HeadRange& query : shape.heads.query)
    slices.push_back({d_o.slice(2, query.begin, query.end), o.slice(2, query.begin, query.end)});
  std::vector<int64_t> counts = query_counts(shape.heads);
  for (int64_t& count : counts) count *= 2;
  const at::Tensor both = exchange_to_heads(group, shape.layout, counts, slices);
  const int64_t mine = shape.heads.query[group.rank()].size();
  return {both.narrow(2, 0, mine), both.narrow(2, mine, mine)};
}

UlyssesAttention ulysses_attention_forward(const ShardedAttention& over, const HeadShares& heads,
                                           SequenceSpec spec, const at::Tensor& qkv) {
  if (over.head_chunks > 1) return chunked_attention_forward(over, heads, std::move(spec), qkv);
  const UlyssesShape shape{spec.layout.within(over.attention.place()), heads};
  spec.kv_of_query = heads.kv_of_query(over.ulysses.rank());
  const HeadsQkv mine = seq_to_heads_qkv(over.ulysses, shape, qkv);
  const AttentionOutput out = over.attention.forward(mine.q, mine.k, mine.v, spec);
  return {heads_to_seq(over.ulysses, shape, out.o), out.lse};
}

at::Tensor ulysses_attention_backward(const ShardedAttention& over, const HeadShares& heads,
                                      SequenceSpec spec, const at::Tensor& d_o, const at::Tensor& qkv,
                                      const UlyssesAttention& saved) {
  if (over.head_chunks > 1) return chunked_attention_backward(over, heads, std::move(spec), d_o, qkv, saved);
  const UlyssesShape shape{spec.layout.within(over.attention.place()), heads};
  spec.kv_of_query = heads.kv_of_query(over.ulysses.rank());
  const HeadsQkv mine = seq_to_heads_qkv(over.ulysses, shape, qkv);
  const auto [do_heads, o_heads] = seq_to_heads_pair(over.ulysses, shape, d_o, saved.o);
  return heads_to_seq_qkv(
      over.ulysses, shape,
      over.attention.backward(do_heads, mine.q, mine.k, mine.v, {o_heads, saved.lse}, spec));
}

}  // namespace trireme
