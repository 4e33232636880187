// A GPU's AdamW with bf16 moments is bit for bit the same arithmetic compiled for the host, for spans of
// every alignment.
#include <cstring>

#include <gtest/gtest.h>

#include "trireme/shard/narrow_adamw_device.h"

#include "tests/support/device_under_test.h"

namespace trireme::narrow_adamw_cuda_test {
namespace {

struct Buffers {
  at::Tensor master, gradient, mean, square;

  Buffers to(at::Device device) const {
    return {master.to(device, false, true), gradient.to(device, false, true), mean.to(device, false, true),
            square.to(device, false, true)};
  }
  NarrowAdamwSpan span(int64_t offset, int64_t count, uint64_t first_element) const {
    const auto bits = [offset](const at::Tensor& moment) {
      return static_cast<uint16_t*>(moment.mutable_data_ptr()) + offset;
    };
    return {static_cast<float*>(master.mutable_data_ptr()) + offset,
            static_cast<const float*>(gradient.const_data_ptr()) + offset,
            bits(mean),
            bits(square),
            count,
            rounding_key(3, 7),
            rounding_key(3, 8),
            first_element};
  }
};

bool same_bits(const at::Tensor& there, const at::Tensor& here) {
  return at::equal(there.to(at::kCPU).view(at::kByte), here.view(at::kByte));
}

TEST(NarrowAdamwOnCuda, has_the_bits_of_the_host_for_spans_of_every_alignment) {
  const auto device = testing::device_under_test();
  if (!device) GTEST_SKIP() << "no GPU here";
  const int64_t kMost = 3 << 20;
  for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{1000}, int64_t{100'003}, kMost})
    for (const int64_t offset : {0, 1, 4, 8})
      for (const uint64_t first_element : {0U, 4U, 5U}) {
        SCOPED_TRACE(::testing::Message() << count << " from " << offset << ", element " << first_element);
        const int64_t all = count + offset;
        const Buffers here{at::randn({all}), at::randn({all}).mul_(1e-3), at::randn({all}).to(at::kBFloat16),
                           at::rand({all}).to(at::kBFloat16)};
        const Buffers there = here.to(*device);
        for (int64_t steps = 1; steps <= 2; ++steps) {
          const NarrowAdamwStep step = narrow_adamw_step(0.9, 0.999, 1e-8, 0.1, 1e-3, 0.7, steps);
          step_elements(here.span(offset, count, first_element), step, 0, count);
          step_narrow_adamw(there.span(offset, count, first_element), step, *device);
        }
        ASSERT_TRUE(same_bits(there.master, here.master));
        ASSERT_TRUE(same_bits(there.mean, here.mean));
        ASSERT_TRUE(same_bits(there.square, here.square));
      }
}

}  // namespace
}  // namespace trireme::narrow_adamw_cuda_test
