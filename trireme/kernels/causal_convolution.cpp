#include "trireme/kernels/causal_convolution.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/causal_convolution_bytes.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {
namespace {

int64_t block_rows(const at::Tensor& x_BSC) {
  return convolution_block_rows(x_BSC.size(2), x_BSC.is_cpu());
}

// One sample's rows, and the convolution of a block of them.
class Sample {
 public:
  // `begins`: of its documents (document_begins.h), or undefined.
  Sample(const at::Tensor& x_SC, const at::Tensor& taps_WC, const at::Tensor& begins_S)
      : x_(x_SC), taps_(taps_WC), begins_(begins_S) {}

  int64_t taps() const { return taps_.size(0); }
  // x_{t - back} of rows t in [first, end), zero where another document has it; first >= back.
  at::Tensor rows_back(int64_t first, int64_t end, int64_t back) const {
    return seen(x_.slice(0, first - back, end - back).to(taps_.scalar_type()), first, end, back);
  }
  // Rows that belong to rows [first, end), zero where their document began since `back` tokens.
  at::Tensor seen(const at::Tensor& rows, int64_t first, int64_t end, int64_t back) const {
    if (!begins_.defined() || back == 0) return rows;
    const at::Tensor tokens_back = at::arange(first - back, end - back, begins_.options());
    return rows.masked_fill(begins_.slice(0, first, end).gt(tokens_back).unsqueeze(1), 0);
  }
  at::Tensor tap(int64_t back) const { return taps_[taps() - 1 - back]; }
  at::Tensor pre(int64_t begin, int64_t end) const {
    at::Tensor sum = at::zeros({end - begin, x_.size(1)}, taps_.options());
    for (int64_t back = 0; back < taps(); ++back) {
      const int64_t first = std::max(begin, back);
      if (first < end) sum.slice(0, first - begin).addcmul_(rows_back(first, end, back), tap(back));
    }
    return sum;
  }

 private:
  at::Tensor x_, taps_, begins_;
};

// Calls body(sample, its number).
template <typename Body>
void each_sample(const at::Tensor& x_BSC, const at::Tensor& weight_CW, const at::Tensor& document_begins_BS,
                 const Body& body) {
  const at::NoGradGuard no_grad;
  TRIREME_ASSERT(!document_begins_BS.defined() || document_begins_BS.sizes() == x_BSC.sizes().slice(0, 2),
                 "convolution of ", x_BSC.sizes(), ": other document_begins");
  const at::Tensor taps = weight_CW.to(compute_dtype(weight_CW)).t().contiguous();
  for (int64_t b = 0; b < x_BSC.size(0); ++b)
    body(Sample(x_BSC[b], taps, document_begins_BS.defined() ? document_begins_BS[b] : at::Tensor()), b);
}

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x_BSC, const at::Tensor& weight_CW,
                              const at::Tensor& document_begins_BS) {
  at::Tensor y = at::empty(x_BSC.sizes(), x_BSC.options());
  const int64_t rows = block_rows(x_BSC), S = x_BSC.size(1);
  each_sample(x_BSC, weight_CW, document_begins_BS, [&](const Sample& sample, int64_t b) {
    for (int64_t begin = 0; begin < S; begin += rows) {
      const int64_t end = std::min(S, begin + rows);
      at::Tensor pre = sample.pre(begin, end);
      y[b].slice(0, begin, end).copy_(at::silu_(pre));
    }
  });
  return y;
}

void causal_convolution_backward(const at::Tensor& dy_BSC, const at::Tensor& x_BSC,
                                 const at::Tensor& weight_CW, const at::Tensor& document_begins_BS,
                                 const at::Tensor& dx_BSC, const at::Tensor& dweight_CW) {
  const int64_t rows = block_rows(x_BSC), S = x_BSC.size(1), C = x_BSC.size(2);
  each_sample(x_BSC, weight_CW, document_begins_BS, [&](const Sample& sample, int64_t b) {
    const int64_t reach = sample.taps() - 1;
    at::Tensor later;  // what rows of the block behind add to the last rows of this one: [reach, C]
    for (int64_t end = S; end > 0;) {
      const int64_t begin = std::max<int64_t>(0, end - rows);
      const at::Tensor dpre = [&] {
        const at::Tensor pre = sample.pre(begin, end);
        return at::silu_backward(dy_BSC[b].slice(0, begin, end).to(pre.scalar_type()), pre);
      }();
      // Rows from begin - reach on, the first of which may not be there.
      const at::Tensor sum = at::zeros({end - begin + reach, C}, dpre.options());
      if (later.defined()) sum.slice(0, sum.size(0) - later.size(0)).add_(later);
      for (int64_t back = 0; back <= reach; ++back) {
        const int64_t first = std::max(begin, back);
        if (first >= end) continue;
        const at::Tensor x = sample.rows_back(first, end, back), d = dpre.slice(0, first - begin);
        dweight_CW.select(1, reach - back).add_((x * d).sum(0));
        sum.slice(0, first - begin + reach - back, end - begin + reach - back)
            .addcmul_(sample.seen(d, first, end, back), sample.tap(back));
      }
      dx_BSC[b].slice(0, begin, end).copy_(sum.slice(0, reach));
      later = sum.slice(0, 0, reach).clone();  // without the block
      end = begin;
    }
  });
}

}  // namespace trireme
