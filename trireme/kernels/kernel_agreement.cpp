#include "trireme/kernels/kernel_agreement.h"

#include <cmath>

#include <ATen/CPUGeneratorImpl.h>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// Rows of 150, 1, 40 and (without keys) 9; keys of 150, 1, 200 and, seen by nobody, 5.
constexpr int64_t kRows = 200, kKeys = 356;
// Of the largest entry: two kernels round to 16 bits at other places. A wrong mask differs by a tenth and
// more.
constexpr double kOf16Bits = 0.03;
// The log-sum-exp is fp32 in both.
constexpr double kOfLse = 2e-3;

MaskCall small_call(const Band& band) {
  constexpr int64_t kSmallBound = 37;
  MaskCall call;
  call.sample_end = 1;
  call.q_end = kRows;
  call.k_end = kKeys;
  call.cu_q = {0, 150, 151, 191, 200, 200};
  call.cu_k = {0, 150, 151, 351, 351, 356};
  call.longest_q = 150;
  call.longest_k = 200;
  call.band = {std::min(band.left, kSmallBound), std::min(band.right, kSmallBound)};
  return call;
}

struct SmallResults {
  AttentionOutput out;
  AttentionGradients gradients;
};

// Backward is given the judge's o and log-sum-exp, so that each pass is judged by itself.
SmallResults results_of(CallKernel& kernel, const MaskCall& call, double scale, const at::Tensor& d_o,
                        const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOutput* saved) {
  KernelMask mask = kernel.mask_of(call, q.device());
  mask.scores.scale = scale;
  SmallResults results;
  results.out = kernel.forward(q, k, v, mask);
  results.gradients = kernel.backward(d_o, q, k, v, saved != nullptr ? *saved : results.out, mask);
  return results;
}

class Differences {
 public:
  void add(const char* name, const at::Tensor& got, const at::Tensor& expected, double bound) {
    const at::Tensor a = got.to(at::kCPU, at::kDouble), b = expected.to(at::kCPU, at::kDouble);
    const double largest = std::max(1e-30, b.abs().max().item<double>());
    const double difference = (a - b).abs().max().item<double>() / largest;
    if (difference <= bound) return;  // not a number is not
    text_ += cat(text_.empty() ? "" : ", ", name, " by ", difference, " of its largest entry (expected ",
                 bound, " or less)");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

std::string kernel_difference(CallKernel& judged, CallKernel& judge, const AgreementCase& c) {
  constexpr int64_t kKvHeads = 2;
  const int64_t heads = kKvHeads * c.heads_of_group;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(20260101);
  const auto drawn = [&](int64_t rows, int64_t of_heads) {
    return at::randn({rows, of_heads, c.width}, generator, at::TensorOptions(at::kFloat))
        .to(c.device, c.dtype);
  };
  // q, k and v side by side in a row, as the layers have them.
  const at::Tensor qkv = drawn(kKeys, heads + 2 * kKvHeads), d_o = drawn(kRows, heads);
  const at::Tensor q = qkv.narrow(0, 0, kRows).narrow(1, 0, heads), k = qkv.narrow(1, heads, kKvHeads),
                   v = qkv.narrow(1, heads + kKvHeads, kKvHeads);
  const double scale = 1 / std::sqrt(static_cast<double>(c.width));
  const MaskCall call = small_call(c.band);
  const SmallResults expected = results_of(judge, call, scale, d_o, q, k, v, nullptr);
  const SmallResults got = results_of(judged, call, scale, d_o, q, k, v, &expected.out);
  Differences differences;
  const int64_t seeing_rows = call.cu_q[3];  // the others have an infinite log-sum-exp, of either sign
  differences.add("o", got.out.o, expected.out.o, kOf16Bits);
  differences.add("the log-sum-exp", got.out.lse.slice(1, 0, seeing_rows),
                  expected.out.lse.slice(1, 0, seeing_rows), kOfLse);
  differences.add("dq", got.gradients.dq, expected.gradients.dq, kOf16Bits);
  differences.add("dk", got.gradients.dk, expected.gradients.dk, kOf16Bits);
  differences.add("dv", got.gradients.dv, expected.gradients.dv, kOf16Bits);
  return differences.text();
}

}  // namespace trireme
