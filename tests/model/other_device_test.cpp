// The model's operations on a device that is not the host: the guarded one, or a GPU.
#include <gtest/gtest.h>

#include "trireme/kernels/linear.h"
#include "trireme/model/embedding.h"

#include "tests/support/called_operators.h"
#include "tests/support/device_under_test.h"
#include "tests/support/relative_error.h"

namespace trireme::model_on_another_device_test {
namespace {

class OnAnotherDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::device_under_test()) GTEST_SKIP() << "no GPU here";
    device_ = *testing::device_under_test();
  }
  at::Device device_ = at::kCPU;
};

// A product of each tile that is rounded to 16 bits before the sum has errors of 2^-9 of its largest entries.
TEST_F(OnAnotherDevice, weight_gradients_of_16_bit_tiles_add_up_in_fp32) {
  constexpr int64_t kTokens = 96, kTile = 32, kRows = 24, kColumns = 40;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor dy = at::randn({kTokens, kRows}).to(dtype), x = at::randn({kTokens, kColumns}).to(dtype);
    at::Tensor gradient = at::full({kRows, kColumns}, std::nan(""), device_),
               bias = at::zeros({kRows}, device_);
    for (int64_t begin = 0; begin < kTokens; begin += kTile)
      add_linear_gradient(gradient, bias, dy.narrow(0, begin, kTile).to(device_),
                          x.narrow(0, begin, kTile).to(device_),
                          begin == 0 ? SumState::undefined : SumState::begun);
    const at::Tensor exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
    EXPECT_LT(testing::relative_error(gradient.to(at::kCPU), exact), 1e-6) << dtype;
    EXPECT_LT(testing::relative_error(bias.to(at::kCPU), dy.to(at::kDouble).sum(0)), 1e-6) << dtype;
  }
}

TEST_F(OnAnotherDevice, the_embeddings_gradient_leaves_padding_out_and_the_host_does_not_wait) {
  constexpr int64_t kPadding = 3;
  const at::Tensor tokens = at::tensor({1, 3, 0, 3, 1}, at::kLong), dx = at::randn({5, 4});
  // A tied embedding's gradient holds the head's already.
  UnitSpec unit{.name = "embedding", .parameters = {}, .elements = 24, .tensors = {{0, 6, 4}}};
  UnitGradients gradients(at::ones({24}, device_), unit, SumState::begun);
  at::Tensor expected = at::ones({6, 4});
  for (const int64_t position : {0, 2, 4}) expected[tokens[position].item<int64_t>()].add_(dx[position]);
  ModelConfig config;
  config.pad_token_id = kPadding;
  const EmbeddedTokens embedded{tokens.to(device_), {}};
  const at::Tensor dx_there = dx.to(device_);
  {
    const testing::CalledOperators called;
    make_word_embedding(config)->backward({}, gradients, embedded, dx_there);
    EXPECT_EQ(called.of("aten::index_add_"), 1);
    for (const char* const waits : {"aten::nonzero", "aten::item", "aten::_local_scalar_dense"})
      EXPECT_EQ(called.of(waits), 0) << waits;
  }
  EXPECT_LT(testing::relative_error(gradients.to_add(kWords).to(at::kCPU), expected), 1e-6);
}

}  // namespace
}  // namespace trireme::model_on_another_device_test
