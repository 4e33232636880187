// Copies to a device through pinned memory, with a driver that the test plays.
#include "trireme/memory/through_pinned.h"

#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/kernels/split_master.h"
#include "trireme/memory/pinned_piece.h"

#include "tests/support/guarded_device.h"
#include "tests/support/pinned_ranges.h"

namespace trireme::through_pinned_test {
namespace {

TEST(ThroughPinned, units_of_all_sizes_share_one_block_of_the_size_of_a_piece) {
  install_cpu_caching_allocator();
  const auto ranges = std::make_shared<testing::PinnedRanges>();
  PinnedPool pool(testing::pinning_of(ranges));
  const int64_t piece = kPinnedPiece_bytes / 2;  // elements of bf16
  for (int step = 0; step < 2; ++step)
    for (const int64_t elements : {3 * piece + 5, piece, 2 * piece + 1}) {
      const at::Tensor masters = at::randn({elements});
      at::Tensor values =
          at::empty({elements}, at::TensorOptions(at::kBFloat16).device(testing::guarded_device()));
      copy_through_pinned(values, masters, &pool);
      at::Tensor expected = at::empty({elements}, at::kBFloat16);
      round_masters(masters, expected);
      EXPECT_TRUE(at::equal(values.cpu(), expected)) << elements;
    }
  EXPECT_EQ(ranges->pins(), 1);
  EXPECT_EQ(ranges->bytes(), kPinnedPiece_bytes);
}

TEST(ThroughPinned, a_small_unit_takes_its_size_and_an_empty_share_nothing) {
  install_cpu_caching_allocator();
  const auto ranges = std::make_shared<testing::PinnedRanges>();
  PinnedPool pool(testing::pinning_of(ranges));
  for (const int64_t elements : {0, 1000}) {
    const at::Tensor masters = at::randn({elements});
    at::Tensor values =
        at::empty({elements}, at::TensorOptions(at::kFloat).device(testing::guarded_device()));
    copy_through_pinned(values, masters, &pool);
    EXPECT_TRUE(at::equal(values.cpu(), masters));
    EXPECT_EQ(ranges->pins(), elements > 0 ? 1 : 0);
  }
  EXPECT_EQ(ranges->bytes(), 4096);
}

}  // namespace
}  // namespace trireme::through_pinned_test
