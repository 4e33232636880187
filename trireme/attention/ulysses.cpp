// The exchanges, and attention between them. On the wire a block from rank a to rank b is [s_a, B, heads of b, D] (to
// heads) or [s_b, B, heads of a, D] (to sequence). Tokens come first, so blocks received from all ranks in order are
// [S, B, heads, D]: the sequence whole, without unpacking.
#include "trireme/attention/ulysses.h"

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"

namespace trireme {

namespace {

void check(const Group& group, const UlyssesShape& shape, const at::Tensor& x, int64_t tokens, int64_t heads) {
  TRIREME_ASSERT(shape.layout.ranks == group.size() && shape.heads.ranks() == group.size(), "group of ",
                 group.size(), " ranks, layout of ", shape.layout.ranks, ", head shares of ", shape.heads.ranks());
  TRIREME_ASSERT(x.dim() == 4 && x.size(1) == tokens && x.size(2) == heads, "got ", x.sizes(), ", expected [B, ",
                 tokens, ", ", heads, ", D]");
}

int64_t packed_heads(const HeadShares& heads, int rank) {
  return heads.query[rank].size() + 2 * heads.key_value[rank].size();
}

// One all-to-all of flat blocks: sends send[p] elements to rank p, receives receive[p] from it.
at::Tensor trade(Group& group, const at::Tensor& flat, const std::vector<int64_t>& send,
                 const std::vector<int64_t>& receive) {
  return all_to_all(group, flat, send, receive);
}

// Sequence to heads. slices(p) lists what of x_BsND rank p gets, as views [B, s, some heads, D]; n(p) counts its
// heads. Returns [B, S, n(this rank), D], a view of the receive buffer.
template <typename Slices, typename Count>
at::Tensor to_heads(Group& group, const UlyssesShape& shape, const at::Tensor& x, const Slices& slices, const Count& n) {
  const int64_t batch = x.size(0), width = x.size(3), tokens = shape.layout.size(group.rank());
  std::vector<int64_t> send, receive;
  int64_t total = 0;
  for (int p = 0; p < group.size(); ++p) {
    send.push_back(tokens * batch * n(p) * width);
    receive.push_back(shape.layout.size(p) * batch * n(group.rank()) * width);
    total += send.back();
  }
  const at::Tensor packed = at::empty({total}, x.options());
  int64_t at = 0;
  for (int p = 0; p < group.size(); at += send[p++]) {
    const at::Tensor block = packed.slice(0, at, at + send[p]).view({tokens, batch, n(p), width});
    int64_t head = 0;
    for (const at::Tensor& slice : slices(p)) {
      block.narrow(2, head, slice.size(2)).copy_(slice.transpose(0, 1));
      head += slice.size(2);
    }
  }
  return trade(group, packed, send, receive)
      .view({shape.layout.tokens, batch, n(group.rank()), width})
      .transpose(0, 1);
}

// Heads to sequence: x_BSnD -> the blocks [B, s, n(p), D] of every rank p, views of the receive buffer.
template <typename Count>
std::vector<at::Tensor> to_sequence(Group& group, const UlyssesShape& shape, const at::Tensor& x, const Count& n) {
  const int64_t batch = x.size(0), width = x.size(3), tokens = shape.layout.size(group.rank());
  std::vector<int64_t> send, receive;
  for (int p = 0; p < group.size(); ++p) {
    send.push_back(shape.layout.size(p) * batch * x.size(2) * width);
    receive.push_back(tokens * batch * n(p) * width);
  }
  const at::Tensor received = trade(group, x.transpose(0, 1).contiguous().view({-1}), send, receive);
  std::vector<at::Tensor> blocks;
  int64_t at = 0;
  for (int p = 0; p < group.size(); at += receive[p++])
    blocks.push_back(
        received.slice(0, at, at + receive[p]).view({tokens, batch, n(p), width}).transpose(0, 1));
  return blocks;
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
  const auto slices = [&](int p) {
    const HeadRange &q = heads.query[p], &kv = heads.key_value[p];
    return std::vector<at::Tensor>{all.q.slice(2, q.begin, q.end), all.k.slice(2, kv.begin, kv.end),
                                   all.v.slice(2, kv.begin, kv.end)};
  };
  const at::Tensor mine = to_heads(group, shape, qkv, slices, [&](int p) { return packed_heads(heads, p); });
  return split_qkv(mine, heads.query[group.rank()].size(), heads.key_value[group.rank()].size());
}

at::Tensor heads_to_seq_qkv(Group& group, const UlyssesShape& shape, const AttentionGradients& gradients) {
  const HeadShares& heads = shape.heads;
  check(group, shape, gradients.dq, shape.layout.tokens, heads.query[group.rank()].size());
  const at::Tensor mine = at::cat({gradients.dq, gradients.dk, gradients.dv}, 2);
  if (group.size() == 1) return mine;
  const auto blocks = to_sequence(group, shape, mine, [&](int p) { return packed_heads(heads, p); });
  const int64_t all = heads.query_heads + 2 * heads.key_value_heads;
  const at::Tensor result = at::empty({mine.size(0), shape.layout.size(group.rank()), all, mine.size(3)}, mine.options());
  const auto sum_type = mine.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const HeadsQkv out = split_qkv(result, heads.query_heads, heads.key_value_heads);
  const at::Tensor dk = at::zeros(out.k.sizes(), mine.options().dtype(sum_type)), dv = at::zeros_like(dk);
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
  return at::cat(to_sequence(group, shape, o, [&](int p) { return shape.heads.query[p].size(); }), 2);
}

at::Tensor seq_to_heads(Group& group, const UlyssesShape& shape, const at::Tensor& d_o) {
  check(group, shape, d_o, shape.layout.size(group.rank()), shape.heads.query_heads);
  if (group.size() == 1) return d_o;
  const auto& query = shape.heads.query;
  const auto slices = [&](int p) { return std::vector<at::Tensor>{d_o.slice(2, query[p].begin, query[p].end)}; };
  return to_heads(group, shape, d_o, slices, [&](int p) { return query[p].size(); });
}

std::pair<at::Tensor, at::Tensor> seq_to_heads_pair(Group& group, const UlyssesShape& shape, const at::Tensor& d_o,
                                                    const at::Tensor& o) {
  check(group, shape, d_o, shape.layout.size(group.rank()), shape.heads.query_heads);
  check(group, shape, o, d_o.size(1), d_o.size(2));
  if (group.size() == 1) return {d_o, o};
  const auto& query = shape.heads.query;
  const auto slices = [&](int p) {
    return std::vector<at::Tensor>{d_o.slice(2, query[p].begin, query[p].end), o.slice(2, query[p].begin, query[p].end)};
  };
  const at::Tensor both = to_heads(group, shape, d_o, slices, [&](int p) { return 2 * query[p].size(); });
  const int64_t mine = query[group.rank()].size();
  return {both.narrow(2, 0, mine), both.narrow(2, mine, mine)};
}

UlyssesAttention ulysses_attention_forward(Group& group, const UlyssesShape& shape, LocalAttention& local,
                                           AttentionSpec spec, const at::Tensor& qkv) {
  spec.kv_of_query = shape.heads.kv_of_query(group.rank());
  const HeadsQkv mine = seq_to_heads_qkv(group, shape, qkv);
  const AttentionOutput out = local.forward(mine.q, mine.k, mine.v, spec);
  return {heads_to_seq(group, shape, out.o), out.lse};
}

at::Tensor ulysses_attention_backward(Group& group, const UlyssesShape& shape, LocalAttention& local,
                                      AttentionSpec spec, const at::Tensor& d_o, const at::Tensor& qkv,
                                      const UlyssesAttention& saved) {
  spec.kv_of_query = shape.heads.kv_of_query(group.rank());
  const HeadsQkv mine = seq_to_heads_qkv(group, shape, qkv);
  const auto [do_heads, o_heads] = seq_to_heads_pair(group, shape, d_o, saved.o);
  return heads_to_seq_qkv(group, shape, local.backward(do_heads, mine.q, mine.k, mine.v, {o_heads, saved.lse}, spec));
}

}  // namespace trireme
