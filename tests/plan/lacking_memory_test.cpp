// Advice on a plan that does not fit is of the memory that lacks, and what it names holds the plan.
#include "trireme/plan/lacking_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/plan.h"
#include "trireme/plan/plan_text.h"

#include "tests/plan/small_request.h"

namespace trireme::lacking_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_request;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

// 4 ranks, each of which leaves 256 MiB of the host to what is no tensor: with 1 GiB nothing is left.
PlanRequest with_small_host(int64_t device_bytes) {
  PlanRequest request = small_request(4, 8192, device_bytes);
  request.hardware.host_memory_bytes = kGiB;
  return request;
}

TEST(LackingMemory, of_the_host_is_told_with_the_limit_that_holds_it) {
  PlanRequest request = with_small_host(400 * kMiB);
  request.pinned.offload_parameters = request.pinned.offload_optimizer = Offload::cpu;
  const Plan plan = make_plan(request);
  ASSERT_FALSE(plan.fits());
  ASSERT_LE(plan.best.memory.device_over_bytes(), 0);
  EXPECT_THAT(plan.advice,
              AllOf(Contains(HasSubstr("--host_memory_limit 2g would do")),
                    Contains(HasSubstr("--explain_oom")), Not(Contains(HasSubstr("on each device")))));
  request.hardware.host_memory_bytes = 2 * kGiB;
  EXPECT_TRUE(make_plan(request).fits());
  EXPECT_TRUE(make_plan(request).advice.empty());
}

// The options that offload are searched already: what lacks is room for what they offload.
TEST(LackingMemory, of_devices_is_told_with_the_host_that_would_hold_their_state) {
  const PlanRequest request = with_small_host(6 * kMiB);
  const Plan plan = make_plan(request);
  ASSERT_FALSE(plan.fits());
  ASSERT_LE(plan.best.memory.host_over_bytes(), 0);
  EXPECT_THAT(plan.advice,
              Contains(AllOf(HasSubstr("on each device"), HasSubstr("more GPUs help as much"),
                             HasSubstr("--offload_params cpu they take"), HasSubstr("that a plan may fill"),
                             HasSubstr("--host_memory_limit 2g would do"))));
  EXPECT_THAT(plan_text(request, plan), HasSubstr("no length on 4"));
}

}  // namespace
}  // namespace trireme::lacking_memory_test
