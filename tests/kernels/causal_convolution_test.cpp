// Against the sums as they are written, in fp64 by plain loops, and their derivatives.
#include "trireme/kernels/causal_convolution.h"

#include <cmath>

#include <gtest/gtest.h>

#include "trireme/kernels/document_begins.h"

namespace trireme {
namespace {

struct Case {
  int64_t batch, tokens, columns, taps;
  std::vector<Documents> documents;
};

std::vector<Case> cases() {
  return {{1, 1, 3, 4, {}},
          {2, 9, 2, 4, {}},
          {1, 3, 2, 5, {}},  // fewer tokens than taps
          {1, 12, 2, 1, {}},
          {1, 12, 3, 4, {Documents({0, 1, 2, 7, 12})}},
          {2, 12, 3, 3, {Documents({0, 12}), Documents({0, 5, 8, 12})}},
          // Several blocks, the last ones short: of 2^18 values on a CPU.
          {1, 11, 1 << 17, 4, {}},
          {1, 11, 1 << 17, 4, {Documents({0, 3, 4, 11})}}};
}

int64_t begin_of_document(const Case& c, int64_t sample, int64_t token) {
  return c.documents.empty() ? 0 : c.documents[static_cast<size_t>(sample)].at(token).begin;
}

// y, and with dy also dx and dweight.
struct Definition {
  at::Tensor y, dx, dweight;

  Definition(const Case& c, const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy)
      : y(at::zeros_like(x)), dx(at::zeros_like(x)), dweight(at::zeros_like(w)) {
    const auto at_ = [&](const at::Tensor& t, int64_t b, int64_t s, int64_t column) -> double& {
      return t.data_ptr<double>()[(b * c.tokens + s) * c.columns + column];
    };
    const auto tap = [&](const at::Tensor& t, int64_t column, int64_t back) -> double& {
      return t.data_ptr<double>()[column * c.taps + c.taps - 1 - back];
    };
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t t = 0; t < c.tokens; ++t) {
        const int64_t most = std::min(c.taps - 1, t - begin_of_document(c, b, t));
        for (int64_t column = 0; column < c.columns; ++column) {
          double pre = 0;
          for (int64_t back = 0; back <= most; ++back)
            pre += tap(w, column, back) * at_(x, b, t - back, column);
          const double s = 1 / (1 + std::exp(-pre));
          at_(y, b, t, column) = pre * s;
          const double dpre = at_(dy, b, t, column) * (s + pre * s * (1 - s));
          for (int64_t back = 0; back <= most; ++back) {
            at_(dx, b, t - back, column) += dpre * tap(w, column, back);
            tap(dweight, column, back) += dpre * at_(x, b, t - back, column);
          }
        }
      }
  }
};

void expect_definition(const Case& c, at::ScalarType dtype, double tolerance) {
  const auto random = [](at::IntArrayRef sizes, at::ScalarType of) {
    return at::randn(sizes, at::kDouble).to(of);
  };
  const at::Tensor x = random({c.batch, c.tokens, c.columns}, dtype), w = random({c.columns, c.taps}, dtype);
  const at::Tensor dy = random(x.sizes(), dtype);
  const Definition truth(c, x.to(at::kDouble), w.to(at::kDouble), dy.to(at::kDouble));
  const auto expect_near = [&](const at::Tensor& got, const at::Tensor& expected) {
    const double error = (got.to(at::kDouble) - expected).abs().max().item<double>();
    EXPECT_LE(error, tolerance * std::max(1.0, expected.abs().max().item<double>()));
  };
  const at::Tensor y = causal_convolution(x, w, document_begins(c.documents));
  EXPECT_EQ(y.scalar_type(), dtype);
  expect_near(y, truth.y);
  const at::Tensor dx = at::empty_like(x);
  const at::Tensor dweight =
      at::ones(w.sizes(), dtype == at::kDouble ? at::kDouble : at::kFloat);  // added to
  causal_convolution_backward(dy, x, w, document_begins(c.documents), dx, dweight);
  expect_near(dx, truth.dx);
  expect_near(dweight - 1, truth.dweight);
}

TEST(CausalConvolution, and_its_gradients_equal_their_definition) {
  for (const Case& c : cases())
    for (const auto& [dtype, tolerance] :
         {std::pair{at::kDouble, 1e-12}, {at::kFloat, 2e-6}, {at::kBFloat16, 1e-2}}) {
      SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, " << c.columns << " columns, " << c.taps
                                        << " taps, " << c.documents.size() << " packed samples, " << dtype);
      expect_definition(c, dtype, tolerance);
    }
}

TEST(CausalConvolution, of_a_document_does_not_depend_on_the_others) {
  const at::Tensor x = at::randn({1, 20, 4}), w = at::randn({4, 4});
  const at::Tensor packed = causal_convolution(x, w, document_begins({Documents({0, 6, 8, 20})}));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 6}, {6, 8}, {8, 20}})
    EXPECT_LT((packed.slice(1, begin, end) - causal_convolution(x.slice(1, begin, end), w, {}))
                  .abs()
                  .max()
                  .item<float>(),
              1e-6);
  at::Tensor broken = x.clone();
  broken.slice(1, 0, 8).fill_(std::nan(""));
  EXPECT_TRUE(
      at::equal(causal_convolution(broken, w, document_begins({Documents({0, 6, 8, 20})})).slice(1, 8),
                packed.slice(1, 8)));
}

}  // namespace
}  // namespace trireme
