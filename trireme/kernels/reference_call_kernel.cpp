// The reference kernel as a kernel of calls. Its scores are [heads, 128 rows, keys] and its time grows with
// their number at the rate of plain operators: long sequences would seem to hang.
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/reference_attention.h"

namespace trireme {

namespace {

constexpr int64_t kMostRows = 4096;

// Rows and keys of one band (mask_runs.h), as ranges of each row.
std::shared_ptr<const VisibleKeys> keys_of(const Band& band, int64_t rows, int64_t keys) {
  auto visible = std::make_shared<VisibleKeys>();
  visible->key_rows = keys;
  KeyRanges ranges;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t diagonal = keys - rows + row;
    ranges.begin.push_back(band.left == kUnbounded ? 0 : std::clamp<int64_t>(diagonal - band.left, 0, keys));
    ranges.end.push_back(band.right == kUnbounded ? keys
                                                  : std::clamp<int64_t>(diagonal + band.right + 1, 0, keys));
  }
  visible->samples = {std::move(ranges)};
  return visible;
}

AttentionSpec spec_of(const at::Tensor& q, const at::Tensor& k, const KernelMask& mask) {
  AttentionSpec spec{mask.scale, keys_of(mask.band, q.size(1), k.size(1)), {}, ResultDtype::of_input};
  for (int64_t head = 0; head < q.size(2); ++head)
    spec.kv_of_query.push_back(static_cast<int>(head * k.size(2) / q.size(2)));
  return spec;
}

class ReferenceCallKernel final : public CallKernel {
 public:
  std::string name() const override { return kernel_.name(); }
  int64_t most_segments(const AttentionSizes& /*sizes*/) const override { return 1; }

  std::string refusal(const MaskCall& call, const AttentionSizes& /*sizes*/) const override {
    const int64_t rows = std::max(call.rows(), call.keys());
    if (rows <= kMostRows) return {};
    return cat("got ", rows,
               " rows in fp32 of a mask that only the reference kernel knows, expected at most ", kMostRows,
               "; use --bf16, or --attention reference to wait for it");
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    return kernel_.forward(q, k, v, spec_of(q, k, mask));
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    return kernel_.backward(d_o, q, k, v, saved, spec_of(q, k, mask));
  }

 private:
  ReferenceAttention kernel_;
};

}  // namespace

std::unique_ptr<CallKernel> make_reference_call_kernel() {
  return std::make_unique<ReferenceCallKernel>();
}

}  // namespace trireme
