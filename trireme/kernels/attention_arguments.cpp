// Checks of shapes, dtypes and the head map.
#include "trireme/kernels/attention_arguments.h"

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {

namespace {

void check_shape(const at::Tensor& tensor, at::IntArrayRef expected, const char* name) {
  TRIREME_ASSERT(tensor.sizes() == expected, name, ": got shape ", tensor.sizes(), ", expected ", expected);
}

}  // namespace

AttentionSizes check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionSpec& spec) {
  TRIREME_ASSERT(q.dim() == 4, "q: got ", q.dim(), " dimensions, expected [B, S, h, D]");
  TRIREME_ASSERT(k.dim() == 4, "k: got ", k.dim(), " dimensions, expected [B, T, k, D]");
  AttentionSizes sizes{q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3), 0};
  check_shape(k, {sizes.batch, sizes.keys, sizes.kv_heads, sizes.width}, "k");
  check_shape(v, {sizes.batch, sizes.keys, sizes.kv_heads, sizes.width}, "v");
  TRIREME_ASSERT(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
                 "q, k, v: got dtypes ", q.scalar_type(), ", ", k.scalar_type(), ", ", v.scalar_type(),
                 ", expected one");
  TRIREME_ASSERT(spec.keys != nullptr, "attention was not told which keys its queries see");
  const VisibleKeys& visible = *spec.keys;
  TRIREME_ASSERT(visible.key_rows == sizes.keys, "ranges over ", visible.key_rows, " key rows, k has ",
                 sizes.keys);
  TRIREME_ASSERT(visible.samples.size() == 1 || static_cast<int64_t>(visible.samples.size()) == sizes.batch,
                 "ranges of ", visible.samples.size(), " samples in a batch of ", sizes.batch);
  for (const KeyRanges& ranges : visible.samples)
    TRIREME_ASSERT(ranges.queries() == sizes.queries, "ranges of ", ranges.queries(), " query rows, q has ",
                   sizes.queries);
  TRIREME_ASSERT(static_cast<int64_t>(spec.kv_of_query.size()) == sizes.query_heads, "kv_of_query: got ",
                 spec.kv_of_query.size(), " entries, expected one for each of ", sizes.query_heads,
                 " query heads");
  int previous = 0;
  for (const int kv_head : spec.kv_of_query) {
    TRIREME_ASSERT(kv_head >= previous && kv_head < sizes.kv_heads, "kv_of_query: got ", kv_head,
                   ", expected a head in [", previous, ", ", sizes.kv_heads, ")");
    previous = kv_head;
  }
  for (const HeadRun& run : runs_of_heads(spec, sizes.kv_heads))
    sizes.largest_group = std::max(sizes.largest_group, run.end - run.begin);
  return sizes;
}

AttentionSizes check_attention_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttentionOutput& saved,
                                        const AttentionSpec& spec) {
  const AttentionSizes sizes = check_attention(q, k, v, spec);
  check_shape(d_o, q.sizes(), "do");
  check_shape(saved.o, q.sizes(), "o");
  check_shape(saved.lse, {sizes.batch, sizes.query_heads, sizes.queries}, "lse");
  TRIREME_ASSERT(d_o.scalar_type() == q.scalar_type() && saved.o.scalar_type() == q.scalar_type(),
                 "do, o: got dtypes ", d_o.scalar_type(), ", ", saved.o.scalar_type(), ", expected q's ",
                 q.scalar_type());
  return sizes;
}

at::ScalarType result_dtype(const at::Tensor& q, const AttentionSpec& spec) {
  return spec.results == ResultDtype::fp32 && q.scalar_type() != at::kDouble ? at::kFloat : q.scalar_type();
}

AttentionOutput output_without_keys(const at::Tensor& q, const AttentionSpec& spec) {
  return {at::zeros(q.sizes(), q.options().dtype(result_dtype(q, spec))),
          at::full({q.size(0), q.size(2), q.size(1)}, -std::numeric_limits<double>::infinity(),
                   q.options().dtype(compute_dtype(q)))};
}

AttentionGradients no_gradients(const at::Tensor& q, const at::Tensor& k, const AttentionSpec& spec) {
  const auto options = q.options().dtype(result_dtype(q, spec));
  return {at::zeros(q.sizes(), options), at::zeros(k.sizes(), options), at::zeros(k.sizes(), options)};
}

at::Tensor with_contiguous_rows(const at::Tensor& tensor) {
  return tensor.size(3) <= 1 || tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

std::vector<HeadRun> runs_of_heads(const AttentionSpec& spec, int64_t kv_heads) {
  std::vector<HeadRun> runs;
  const auto& map = spec.kv_of_query;
  for (int64_t kv_head = 0, begin = 0; kv_head < kv_heads; ++kv_head) {
    HeadRun run{kv_head, begin, begin};
    while (run.end < static_cast<int64_t>(map.size()) && map[run.end] == kv_head) ++run.end;
    begin = run.end;
    runs.push_back(run);
  }
  return runs;
}

}  // namespace trireme
