#include "trireme/kernels/causal_convolution.h"

#include <algorithm>

#include "trireme/kernels/causal_convolution_bytes.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {
namespace {

int64_t block_rows(const at::Tensor& x_BSC) {
  return convolution_block_rows(x_BSC.size(2), x_BSC.is_cpu());
}

// Tokens before each token that are in its document, `most` at most: [S, 1], of one sample.
at::Tensor tokens_before(const Documents& documents, int64_t most, at::Device device) {
  const std::vector<int64_t>& borders = documents.cu_seqlens();
  at::Tensor before = at::full({documents.tokens(), 1}, most, at::kLong);
  int64_t* const values = before.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i + 1 < borders.size(); ++i)
    for (int64_t at = 0; at < std::min(most, borders[i + 1] - borders[i]); ++at) values[borders[i] + at] = at;
  return before.to(device);
}

// One sample's rows, and the convolution of a block of them.
class Sample {
 public:
  Sample(const at::Tensor& x_SC, const at::Tensor& taps_WC, const at::Tensor& before_S1)
      : x_(x_SC), taps_(taps_WC), before_(before_S1) {}

  int64_t taps() const { return taps_.size(0); }
  // x_{t - back} of rows t in [first, end), zero where another document has it; first >= back.
  at::Tensor rows_back(int64_t first, int64_t end, int64_t back) const {
    return seen(x_.slice(0, first - back, end - back).to(taps_.scalar_type()), first, end, back);
  }
  // Rows that belong to rows [first, end), zero where their document began since `back` tokens.
  at::Tensor seen(const at::Tensor& rows, int64_t first, int64_t end, int64_t back) const {
    return before_.defined() && back > 0 ? rows.masked_fill(before_.slice(0, first, end).lt(back), 0) : rows;
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
  at::Tensor x_, taps_, before_;
};

// Calls body(sample, its number).
template <typename Body>
void each_sample(const at::Tensor& x_BSC, const at::Tensor& weight_CW,
                 const std::vector<Documents>& documents, const Body& body) {
  const at::NoGradGuard no_grad;
  const at::Tensor taps = weight_CW.to(compute_dtype(weight_CW)).t().contiguous();
  for (int64_t b = 0; b < x_BSC.size(0); ++b) {
    const at::Tensor before = documents.empty() ? at::Tensor()
                                                : tokens_before(documents.at(static_cast<size_t>(b)),
                                                                taps.size(0) - 1, x_BSC.device());
    body(Sample(x_BSC[b], taps, before), b);
  }
}

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x_BSC, const at::Tensor& weight_CW,
                              const std::vector<Documents>& documents) {
  at::Tensor y = at::empty(x_BSC.sizes(), x_BSC.options());
  const int64_t rows = block_rows(x_BSC), S = x_BSC.size(1);
  each_sample(x_BSC, weight_CW, documents, [&](const Sample& sample, int64_t b) {
    for (int64_t begin = 0; begin < S; begin += rows) {
      const int64_t end = std::min(S, begin + rows);
      at::Tensor pre = sample.pre(begin, end);
      y[b].slice(0, begin, end).copy_(at::silu_(pre));
    }
  });
  return y;
}

void causal_convolution_backward(const at::Tensor& dy_BSC, const at::Tensor& x_BSC,
                                 const at::Tensor& weight_CW, const std::vector<Documents>& documents,
                                 const at::Tensor& dx_BSC, const at::Tensor& dweight_CW) {
  const int64_t rows = block_rows(x_BSC), S = x_BSC.size(1), C = x_BSC.size(2);
  each_sample(x_BSC, weight_CW, documents, [&](const Sample& sample, int64_t b) {
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
