#include "trireme/kernels/key_blocks.h"

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/key_block_sizes.h"

namespace trireme {

namespace {

// Into the rows that o_bshD and lse_bhs are.
void merge(const std::vector<AttentionOutput>& parts, const at::Tensor& o_bshD, const at::Tensor& lse_bhs) {
  std::vector<at::Tensor> lse_of_parts;
  lse_of_parts.reserve(parts.size());
  for (const AttentionOutput& part : parts) lse_of_parts.push_back(part.lse);
  const at::Tensor lse = at::logsumexp(at::stack(lse_of_parts), {0});
  const auto weight = [&](const AttentionOutput& part) {  // [b, s, h, 1]
    return (part.lse - lse).exp_().transpose(1, 2).unsqueeze(3);
  };
  at::Tensor sum = at::mul(parts.front().o, weight(parts.front()));
  for (size_t j = 1; j < parts.size(); ++j) sum.addcmul_(parts[j].o, weight(parts[j]));
  o_bshD.copy_(sum);
  lse_bhs.copy_(lse);
}

}  // namespace

AttentionOutput forward_in_key_blocks(const at::Tensor& q_bshD, const at::Tensor& k_btkD,
                                      const at::Tensor& v_btkD, bool causal, int64_t most_keys,
                                      const DenseForward& forward) {
  const int64_t rows = q_bshD.size(1), keys = k_btkD.size(1);
  TRIREME_ASSERT(!causal || rows == keys, "causal attention of ", rows, " rows over ", keys, " keys");
  if (keys <= most_keys) return forward(q_bshD, k_btkD, v_btkD, causal);
  const int64_t row_step = block_rows(rows, most_keys), key_step = block_rows(keys, most_keys);
  AttentionOutput all{at::empty(q_bshD.sizes(), q_bshD.options()),
                      at::empty({q_bshD.size(0), q_bshD.size(2), rows}, q_bshD.options().dtype(at::kFloat))};
  for (int64_t row = 0; row < rows; row += row_step) {
    const int64_t row_end = std::min(rows, row + row_step), key_end = causal ? row_end : keys;
    const at::Tensor q = q_bshD.slice(1, row, row_end);
    std::vector<AttentionOutput> parts;
    for (int64_t key = 0; key < key_end; key += key_step) {
      const int64_t end = std::min(key_end, key + key_step);
      parts.push_back(forward(q, k_btkD.slice(1, key, end), v_btkD.slice(1, key, end), causal && key == row));
    }
    merge(parts, all.o.slice(1, row, row_end), all.lse.slice(2, row, row_end));
  }
  return all;
}

}  // namespace trireme
