// A GPU's AdamW is bit for bit the same arithmetic compiled for the host, for spans of every alignment.
#include <gtest/gtest.h>

#include "trireme/kernels/split_master.h"
#include "trireme/shard/adamw_device.h"

#include "tests/shard/adamw_one_by_one.h"
#include "tests/support/device_under_test.h"

namespace trireme::adamw_cuda_test {
namespace {

template <typename Moment>
struct Buffers {
  at::Tensor master, gradient, mean, square, values;

  Buffers to(at::Device device) const {
    return {master.to(device, false, true), gradient.to(device, false, true), mean.to(device, false, true),
            square.to(device, false, true), values.to(device, false, true)};
  }
  AdamwSpan<Moment> span(int64_t offset, int64_t count, uint64_t first_element) const {
    const auto of = [offset](const at::Tensor& moment) {
      return static_cast<Moment*>(moment.mutable_data_ptr()) + offset;
    };
    return {static_cast<float*>(master.mutable_data_ptr()) + offset,
            nullptr,
            static_cast<Bf16*>(values.mutable_data_ptr()) + offset,
            static_cast<const float*>(gradient.const_data_ptr()) + offset,
            of(mean),
            of(square),
            count,
            rounding_key(3, 7),
            rounding_key(3, 8),
            first_element};
  }
};

bool same_bits(const at::Tensor& there, const at::Tensor& here) {
  return at::equal(there.to(at::kCPU).view(at::kByte), here.view(at::kByte));
}

template <typename Moment>
void expect_the_bits_of_the_host(at::ScalarType moments) {
  const auto device = testing::device_under_test();
  if (!device) GTEST_SKIP() << "no GPU here";
  const int64_t kMost = 3 << 20;
  for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{1000}, int64_t{100'003}, kMost})
    for (const int64_t offset : {0, 1, 4, 8})
      for (const uint64_t first_element : {0U, 4U, 5U}) {
        SCOPED_TRACE(::testing::Message() << count << " from " << offset << ", element " << first_element);
        const int64_t all = count + offset;
        const Buffers<Moment> here{at::randn({all}), at::randn({all}).mul_(1e-3),
                                   at::randn({all}).to(moments), at::rand({all}).to(moments),
                                   at::zeros({all}, at::kBFloat16)};
        const Buffers<Moment> there = here.to(*device), split = here.to(*device);
        const at::Tensor low = at::zeros({all}, at::TensorOptions(at::kShort).device(*device));
        split_masters(split.master, split.values, low);
        for (int64_t steps = 1; steps <= 2; ++steps) {
          const AdamwStep step = adamw_step(0.9, 0.999, 1e-8, 0.1, 1e-3, 0.7, steps);
          testing::step_one_by_one(here.span(offset, count, first_element), step);
          round_masters(here.master.slice(0, offset), here.values.slice(0, offset));
          step_adamw(there.span(offset, count, first_element), step, *device);
          AdamwSpan<Moment> halves = split.span(offset, count, first_element);
          halves.master = nullptr;
          halves.low = static_cast<uint16_t*>(low.mutable_data_ptr()) + offset;
          step_adamw(halves, step, *device);
        }
        ASSERT_TRUE(same_bits(there.master, here.master));
        ASSERT_TRUE(same_bits(there.values, here.values));
        ASSERT_TRUE(same_bits(there.mean, here.mean));
        ASSERT_TRUE(same_bits(there.square, here.square));
        join_masters(split.values, low, split.master);
        ASSERT_TRUE(same_bits(split.master, here.master));
        ASSERT_TRUE(same_bits(split.values.slice(0, offset), here.values.slice(0, offset)));
        ASSERT_TRUE(same_bits(split.mean, here.mean));
        ASSERT_TRUE(same_bits(split.square, here.square));
      }
}

TEST(AdamwOnCuda, with_bf16_moments_has_the_bits_of_the_host_for_spans_of_every_alignment) {
  expect_the_bits_of_the_host<Bf16>(at::kBFloat16);
}
TEST(AdamwOnCuda, with_fp32_moments_has_the_bits_of_the_host_for_spans_of_every_alignment) {
  expect_the_bits_of_the_host<float>(at::kFloat);
}

}  // namespace
}  // namespace trireme::adamw_cuda_test
