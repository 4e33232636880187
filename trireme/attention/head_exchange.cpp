#include "trireme/attention/head_exchange.h"

#include "trireme/device/memory_account.h"
#include "trireme/kernels/copy_all.h"

namespace trireme {

ToHeads begin_slices_to_heads(Group& group, const SequenceLayout& layout,
                              const std::vector<std::vector<at::Tensor>>& slices) {
  const at::Tensor& any = slices.at(0).at(0);
  const int64_t batch = any.size(0), width = any.size(3), tokens = layout.size(group.rank());
  std::vector<int64_t> head_counts;
  for (const std::vector<at::Tensor>& of_rank : slices) {
    head_counts.push_back(0);
    for (const at::Tensor& slice : of_rank) head_counts.back() += slice.size(2);
  }
  const int64_t heads = head_counts.at(group.rank());
  std::vector<int64_t> send, receive;
  int64_t total = 0;
  for (int p = 0; p < group.size(); ++p) {
    send.push_back(tokens * batch * head_counts[p] * width);
    receive.push_back(layout.size(p) * batch * heads * width);
    total += send.back();
  }
  const at::Tensor packed = [&] {
    const MemoryScope scope(MemoryCategory::communication);
    return at::empty({total}, any.options());
  }();
  const std::vector<at::Tensor> blocks = packed.split_with_sizes(send);
  std::vector<TensorCopy> copies;
  for (int p = 0; p < group.size(); ++p) {
    const at::Tensor block = blocks[p].view({tokens, batch, head_counts[p], width});
    int64_t head = 0;
    for (const at::Tensor& slice : slices[p]) {
      copies.push_back({block.narrow(2, head, slice.size(2)), slice.transpose(0, 1)});
      head += slice.size(2);
    }
  }
  copy_all(copies);
  return {begin_all_to_all(group, packed, send, receive), layout.tokens, batch, heads, width};
}

HeadsQkv split_qkv(const at::Tensor& packed, int64_t query_heads, int64_t kv_heads) {
  return {packed.narrow(2, 0, query_heads), packed.narrow(2, query_heads, kv_heads),
          packed.narrow(2, query_heads + kv_heads, kv_heads)};
}

at::Tensor ToHeads::wait() {
  return rows.wait().view({tokens, batch, heads, width}).transpose(0, 1);
}

ToHeads begin_qkv_to_heads(Group& group, const SequenceLayout& layout, const HeadShares& heads,
                           const HeadsQkv& all) {
  std::vector<std::vector<at::Tensor>> slices;
  for (int p = 0; p < group.size(); ++p) {
    const HeadRange &q = heads.query[p], &kv = heads.key_value[p];
    slices.push_back(
        {all.q.slice(2, q.begin, q.end), all.k.slice(2, kv.begin, kv.end), all.v.slice(2, kv.begin, kv.end)});
  }
  return begin_slices_to_heads(group, layout, slices);
}

ToHeads begin_queries_to_heads(Group& group, const SequenceLayout& layout, const HeadShares& heads,
                               const std::vector<at::Tensor>& each_BsHD) {
  std::vector<std::vector<at::Tensor>> slices;
  for (const HeadRange& query : heads.query) {
    std::vector<at::Tensor>& of_rank = slices.emplace_back();
    for (const at::Tensor& x : each_BsHD) of_rank.push_back(x.slice(2, query.begin, query.end));
  }
  return begin_slices_to_heads(group, layout, slices);
}

std::vector<at::Tensor> ToSequence::wait() {
  std::vector<at::Tensor> blocks = rows.wait().split_with_sizes(receive);
  for (size_t p = 0; p < blocks.size(); ++p)
    blocks[p] = blocks[p].view({tokens, batch, head_counts[p], width}).transpose(0, 1);
  return blocks;
}

std::vector<int64_t> query_counts(const HeadShares& heads) {
  std::vector<int64_t> counts;
  counts.reserve(heads.query.size());
  for (const HeadRange& query : heads.query) counts.push_back(query.size());
  return counts;
}

std::vector<int64_t> packed_counts(const HeadShares& heads) {
  std::vector<int64_t> counts = query_counts(heads);
  for (int rank = 0; rank < heads.ranks(); ++rank) counts[rank] += 2 * heads.key_value[rank].size();
  return counts;
}

ToSequence begin_to_sequence(Group& group, const SequenceLayout& layout,
                             const std::vector<int64_t>& head_counts, const at::Tensor& x) {
  // The blocks are put together by the caller, so both sides of the exchange are buffers.
  const MemoryScope scope(MemoryCategory::communication);
  const int64_t batch = x.size(0), width = x.size(3), tokens = layout.size(group.rank());
  std::vector<int64_t> send, receive;
  for (int p = 0; p < group.size(); ++p) {
    send.push_back(layout.size(p) * batch * x.size(2) * width);
    receive.push_back(tokens * batch * head_counts[p] * width);
  }
  return {begin_all_to_all(group, x.transpose(0, 1).contiguous().view({-1}), send, receive),
          receive,
          head_counts,
          tokens,
          batch,
          width};
}

}  // namespace trireme
