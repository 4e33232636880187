// What every local attention kernel asks of its arguments; a mismatch is a bug of the caller, named by
// tensor.
#pragma once

#include "trireme/kernels/local_attention.h"

namespace trireme {

// Sizes of one call. B batch, S query and T key rows, h query heads, k key/value heads, D head width.
struct AttentionSizes {
  int64_t batch = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t width = 0;
  int64_t largest_group = 0;  // query heads of a key/value head
  bool operator==(const AttentionSizes&) const = default;
  bool empty() const { return batch == 0 || queries == 0 || keys == 0 || query_heads == 0 || kv_heads == 0; }
};

// Throws InternalError: shapes, dtypes or the head map do not agree.
AttentionSizes check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionSpec& spec);
AttentionSizes check_attention_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttentionOutput& saved,
                                        const AttentionSpec& spec);

// The tensor itself, or a copy where its last dimension is not contiguous.
at::Tensor with_contiguous_rows(const at::Tensor& tensor);

// o = 0 and lse = minus infinity: of queries that see nothing.
AttentionOutput output_without_keys(const at::Tensor& q, const AttentionSpec& spec);
// Of backward, all zero.
AttentionGradients no_gradients(const at::Tensor& q, const at::Tensor& k, const AttentionSpec& spec);

// The dtype of o, dq, dk and dv.
at::ScalarType result_dtype(const at::Tensor& q, const AttentionSpec& spec);

// Query heads [begin, end) that use one key/value head.
struct HeadRun {
  int64_t kv_head = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// One run for each key/value head, in order; a head that no query uses has an empty run.
std::vector<HeadRun> runs_of_heads(const AttentionSpec& spec, int64_t kv_heads);

}  // namespace trireme
