#include "trireme/attention/head_exchange.h"

#include "trireme/device/memory_account.h"

namespace trireme {

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

at::Tensor ToHeads::wait() {
  return rows.wait().view({tokens, batch, heads, width}).transpose(0, 1);
}

ToHeads begin_exchange_to_heads(Group& group, const SequenceLayout& layout,
                                const std::vector<int64_t>& head_counts,
                                const std::vector<std::vector<at::Tensor>>& slices) {
  const at::Tensor& any = slices.at(0).at(0);
  const int64_t batch = any.size(0), width = any.size(3), tokens = layout.size(group.rank());
  const int64_t mine = head_counts.at(group.rank());
  std::vector<int64_t> send, receive;
  int64_t total = 0;
  for (int p = 0; p < group.size(); ++p) {
    send.push_back(tokens * batch * head_counts[p] * width);
    receive.push_back(layout.size(p) * batch * mine * width);
    total += send.back();
  }
  const at::Tensor packed = [&] {
    const MemoryScope scope(MemoryCategory::communication);
    return at::empty({total}, any.options());
  }();
  int64_t at = 0;
  for (int p = 0; p < group.size(); at += send[p++]) {
    const at::Tensor block = packed.slice(0, at, at + send[p]).view({tokens, batch, head_counts[p], width});
    int64_t head = 0;
    for (const at::Tensor& slice : slices[p]) {
      block.narrow(2, head, slice.size(2)).copy_(slice.transpose(0, 1));
      head += slice.size(2);
    }
  }
  return {begin_all_to_all(group, packed, send, receive), layout.tokens, batch, mine, width};
}

at::Tensor exchange_to_heads(Group& group, const SequenceLayout& layout,
                             const std::vector<int64_t>& head_counts,
                             const std::vector<std::vector<at::Tensor>>& slices) {
  return begin_exchange_to_heads(group, layout, head_counts, slices).wait();
}

std::vector<at::Tensor> ToSequence::wait() {
  const at::Tensor received = rows.wait();
  std::vector<at::Tensor> blocks;
  blocks.reserve(receive.size());
  int64_t at = 0;
  for (size_t p = 0; p < receive.size(); at += receive[p++])
    blocks.push_back(
        received.slice(0, at, at + receive[p]).view({tokens, batch, head_counts[p], width}).transpose(0, 1));
  return blocks;
}

ToSequence begin_exchange_to_sequence(Group& group, const SequenceLayout& layout,
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

std::vector<at::Tensor> exchange_to_sequence(Group& group, const SequenceLayout& layout,
                                             const std::vector<int64_t>& head_counts, const at::Tensor& x) {
  return begin_exchange_to_sequence(group, layout, head_counts, x).wait();
}

}  // namespace trireme
