#include "trireme/device/memory_budget.h"

#include <limits>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/host_memory_limit.h"

#include "tests/support/byte_units.h"

namespace trireme {
namespace {

using testing::kMiB;

TEST(MemoryBudget, is_a_ranks_share_less_a_tenth_and_a_fixed_part) {
  EXPECT_EQ(memory_budget_bytes(at::kCPU, 10240 * kMiB, 1), (9216 - 256) * kMiB);
  EXPECT_EQ(memory_budget_bytes(at::kCPU, 10240 * kMiB, 4), (2304 - 256) * kMiB);
  // A GPU's communication library takes more.
  EXPECT_EQ(memory_budget_bytes(at::Device(at::kCUDA, 0), 81920 * kMiB, 1), (73728 - 1024) * kMiB);
}

TEST(MemoryBudget, is_nothing_where_the_parts_outside_take_it_all) {
  EXPECT_EQ(memory_budget_bytes(at::kCPU, 0, 1), 0);
  EXPECT_EQ(memory_budget_bytes(at::kCPU, 1024 * kMiB, 8), 0);
  EXPECT_GT(memory_budget_bytes(at::kCPU, std::numeric_limits<int64_t>::max(), 1), int64_t{1} << 62);
  EXPECT_THROW(memory_budget_bytes(at::kCPU, 1024 * kMiB, 0), InternalError);
}

TEST(MemoryBudget, of_this_machine_is_below_its_limit) {
  const int64_t left = device_memory_left_bytes(at::kCPU);
  EXPECT_GT(left, 0);
  EXPECT_LT(left, host_memory_limit_bytes());
}

}  // namespace
}  // namespace trireme
