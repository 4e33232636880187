// A gather before each block, a scatter after it, and their adjoints.
#include "bench/comm/megatron_exchanges.h"

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"

namespace trireme {

namespace {

void check(const Group& group, const SequenceLayout& layout, const at::Tensor& x) {
  TRIREME_ASSERT(layout.ranks == group.size(), "group of ", group.size(), " ranks, layout of ", layout.ranks);
  TRIREME_ASSERT(x.dim() == 3 && x.size(0) == layout.size(group.rank()), "got ", x.sizes(), ", expected [",
                 layout.size(group.rank()), ", B, M]");
}

// x + the sum over ranks of what the block makes of all tokens.
at::Tensor block_forward(Group& group, const SequenceLayout& layout, const TensorParallelBlock& block,
                         const at::Tensor& x) {
  const std::vector<int64_t> rows = layout.sizes();
  const at::Tensor part = block.forward(all_gather(group, x, rows));
  return reduce_scatter_sum(group, part, rows).add(x);
}

at::Tensor block_backward(Group& group, const SequenceLayout& layout, const TensorParallelBlock& block,
                          const at::Tensor& x, const at::Tensor& d_out) {
  const std::vector<int64_t> rows = layout.sizes();
  const at::Tensor d_out_whole = all_gather(group, d_out, rows);
  const at::Tensor part = block.backward(all_gather(group, x, rows), d_out_whole);
  return reduce_scatter_sum(group, part, rows).add(d_out);
}

}  // namespace

MegatronOutput megatron_layer_forward(Group& group, const SequenceLayout& layout,
                                      const MegatronBlocks& blocks, const at::Tensor& x) {
  check(group, layout, x);
  const at::Tensor y = block_forward(group, layout, blocks.attention, x);
  return {block_forward(group, layout, blocks.mlp, y), {x, y}};
}

at::Tensor megatron_layer_backward(Group& group, const SequenceLayout& layout, const MegatronBlocks& blocks,
                                   const at::Tensor& dz, const MegatronSaved& saved) {
  check(group, layout, dz);
  const at::Tensor dy = block_backward(group, layout, blocks.mlp, saved.y_sBM, dz);
  return block_backward(group, layout, blocks.attention, saved.x_sBM, dy);
}

ExchangeBytes megatron_exchange_bytes(int64_t batch, int64_t hidden, int64_t element_bytes,
                                      const SequenceLayout& layout, int rank) {
  TRIREME_ASSERT(rank >= 0 && rank < layout.ranks, "rank ", rank, " of ", layout.ranks);
  const int64_t rank_tokens = layout.size(rank), row = batch * hidden * element_bytes;
  const int64_t gather = rank_tokens * (layout.ranks - 1) * row,
                scatter = (layout.tokens - rank_tokens) * row;
  return {2 * gather + 2 * scatter, 4 * gather + 2 * scatter};
}

}  // namespace trireme
