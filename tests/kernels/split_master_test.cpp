// Masters in halves: nothing is lost, values are the nearest, and every compilation and device has the same
// bits.
#include "trireme/kernels/split_master.h"

#include <gtest/gtest.h>

#include "trireme/kernels/master_bits.h"
#include "trireme/kernels/split_master_bytes.h"
#include "trireme/kernels/split_master_kernel.h"

#include "tests/support/guarded_device.h"

namespace trireme::split_master_test {
namespace {

// Every upper half with the lower halves around which rounding changes: [6 x 65536] of fp32.
at::Tensor masters() {
  const at::Tensor upper = at::arange(0x10000, at::kInt).bitwise_left_shift_(16);
  const at::Tensor lower = at::tensor({0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}, at::kInt);
  return upper.unsqueeze(0).bitwise_or(lower.unsqueeze(1)).flatten().view(at::kFloat);
}
at::Tensor finite(const at::Tensor& of) {
  return of.masked_select(of.abs().lt(0x1.fep127));
}
at::Tensor bits(const at::Tensor& tensor) {
  return tensor.view(tensor.element_size() == 4 ? at::kInt : at::kShort);
}

struct Halves {
  at::Tensor values, low;
};
Halves split(const at::Tensor& of) {
  const at::TensorOptions options = of.options();
  Halves halves{at::empty(of.sizes(), options.dtype(at::kBFloat16)),
                at::empty(of.sizes(), options.dtype(at::kShort))};
  split_masters(of, halves.values, halves.low);
  return halves;
}
at::Tensor join(const Halves& halves) {
  at::Tensor joined = at::empty(halves.values.sizes(), halves.values.options().dtype(at::kFloat));
  join_masters(halves.values, halves.low, joined);
  return joined;
}
at::Tensor rounded(const at::Tensor& of) {
  at::Tensor values = at::empty(of.sizes(), of.options().dtype(at::kBFloat16));
  round_masters(of, values);
  return values;
}

TEST(SplitMaster, has_every_bit_of_its_master) {
  const at::Tensor all = masters(), joined = join(split(all)), is_nan = all.isnan();
  EXPECT_TRUE(at::equal(bits(joined).masked_fill(is_nan, 0), bits(all).masked_fill(is_nan, 0)));
  EXPECT_TRUE(joined.masked_select(is_nan).isnan().all().item<bool>());
}

TEST(SplitMaster, has_the_nearest_value_and_of_two_as_near_the_larger) {
  const at::Tensor all = finite(masters());
  const at::Tensor exact = all.to(at::kDouble), value = split(all).values.to(at::kDouble);
  const at::Tensor ieee = all.to(at::kBFloat16).to(at::kDouble);
  EXPECT_TRUE(at::equal((value - exact).abs(), (ieee - exact).abs()));
  const at::Tensor differs = value.ne(ieee);
  EXPECT_GT(differs.sum().item<int64_t>(), 30'000);  // half of the ties
  EXPECT_TRUE(value.abs().gt(ieee.abs()).masked_select(differs).all().item<bool>());
}

TEST(SplitMaster, has_no_other_rounding_than_masters_that_are_not_split) {
  const at::Tensor all = masters();
  EXPECT_TRUE(at::equal(bits(rounded(all)), bits(split(all).values)));
  const at::Tensor of_fp16 = at::arange(0x7c00, at::kShort).view(at::kHalf);
  EXPECT_TRUE(at::equal(rounded(of_fp16), rounded(of_fp16.to(at::kFloat))));
  const at::Tensor narrow = at::empty({3}, at::kHalf);
  round_masters(at::tensor({1.0F, 2.5F, -0.1F}), narrow);
  EXPECT_TRUE(at::equal(narrow, at::tensor({1.0F, 2.5F, -0.1F}).to(at::kHalf)));
}

TEST(SplitMaster, has_the_same_bits_on_a_device_in_pieces_of_atens_operations) {
  // More than a piece, of a length that is no multiple of it.
  const at::Tensor all = masters().repeat({kSplitPiece_elements / masters().numel() + 2}).slice(0, 5);
  const Halves here = split(all), there = split(all.to(testing::guarded_device()));
  EXPECT_TRUE(at::equal(bits(there.values.cpu()), bits(here.values)));
  EXPECT_TRUE(at::equal(there.low.cpu(), here.low));
  EXPECT_TRUE(at::equal(bits(join(there).cpu()), bits(join(here))));
  EXPECT_TRUE(at::equal(bits(rounded(all.to(testing::guarded_device())).cpu()), bits(here.values)));
}

TEST(SplitMaster, has_the_same_bits_at_each_level_that_the_processor_runs) {
  const at::Tensor all = masters();
  const int64_t count = all.numel();
  const auto* from = static_cast<const uint32_t*>(all.const_data_ptr());
  const auto expect = [&](auto* round, auto* split_block, auto* join_block) {
    std::vector<uint16_t> only(count), values(count), low(count);
    std::vector<uint32_t> joined(count);
    round(from, only.data(), count);
    split_block(from, values.data(), low.data(), count);
    join_block(values.data(), low.data(), joined.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(only[i], value_of_master(from[i]));
      ASSERT_EQ(values[i], value_of_master(from[i]));
      ASSERT_EQ(low[i], low_of_master(from[i]));
      ASSERT_EQ(joined[i], master_of(values[i], low[i]));
    }
  };
  expect(&simd_base::round_masters, &simd_base::split_masters, &simd_base::join_masters);
  if (simd_level() != SimdLevel::base)
    expect(&simd_v3::round_masters, &simd_v3::split_masters, &simd_v3::join_masters);
  if (simd_level() == SimdLevel::v4)
    expect(&simd_v4::round_masters, &simd_v4::split_masters, &simd_v4::join_masters);
}

}  // namespace
}  // namespace trireme::split_master_test
