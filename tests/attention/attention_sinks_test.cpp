// What tests/python/test_ulysses_attention.py cannot reach of sinks: queries without keys. There it is shown
// that their numbers are right.
#include "trireme/attention/attention_sinks.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace trireme::attention_sinks_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The second of two queries sees no key; the first sees one of score 0 and value 1.
class OneKey final : public SequenceAttention {
 public:
  std::string name() const override { return "one key"; }
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& /*k*/, const at::Tensor& /*v*/,
                          const SequenceSpec& /*spec*/) override {
    AttentionOutput out{at::zeros_like(q), at::full({1, q.size(2), 2}, -kInfinity)};
    out.o.select(1, 0).fill_(1);
    out.lse.select(2, 0).fill_(0);
    return out;
  }
  AttentionGradients backward(const at::Tensor& /*d_o*/, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& /*saved*/,
                              const SequenceSpec& /*spec*/) override {
    return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  }
};

struct Call {
  explicit Call(const at::Tensor& sinks) : attention(std::make_unique<OneKey>(), sinks) {
    const SequenceMask mask;
    const SequenceSpec spec{{}, {}, mask};
    const at::Tensor q = at::ones({1, 2, sinks.size(0), 3});
    out = attention.forward(q, q, q, spec);
    attention.backward(at::ones_like(q), q, q, q, out, spec);
  }

  AttentionWithSinks attention;
  AttentionOutput out;
};

TEST(AttentionSinks, a_query_without_keys_gives_its_whole_weight_to_the_sink) {
  const Call call(at::full({2}, std::log(3.0)));
  EXPECT_TRUE(at::allclose(call.out.o.select(1, 0), at::full({1, 2, 3}, 0.25)));
  EXPECT_TRUE(at::equal(call.out.o.select(1, 1), at::zeros({1, 2, 3})));
  EXPECT_TRUE(at::allclose(call.out.lse, at::tensor({std::log(4.0), std::log(3.0)}, at::kFloat)));
  // Of the first query alone: - 3/4 rowsum(do o).
  EXPECT_TRUE(at::allclose(call.attention.d_sinks_H(), at::full({2}, -0.75 * 0.75)));
}

TEST(AttentionSinks, without_keys_or_a_sink_there_is_no_weight) {
  const Call call(at::full({1}, -kInfinity));
  EXPECT_TRUE(at::equal(call.out.o.select(1, 0), at::ones({1, 1, 3})));
  EXPECT_TRUE(at::equal(call.out.o.select(1, 1), at::zeros({1, 1, 3})));
  EXPECT_TRUE(at::equal(call.out.lse.select(2, 1), at::full({1, 1}, -kInfinity)));
  EXPECT_TRUE(at::equal(call.attention.d_sinks_H(), at::zeros({1})));
}

}  // namespace
}  // namespace trireme::attention_sinks_test
