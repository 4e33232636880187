// What ranks decide together when the device of one has failed, and its error says something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"
#include "tests/support/guarded_device.h"

namespace trireme::failed_device_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

template <typename Kind>
std::vector<std::string> told_of_a_bug_on_rank_1() {
  std::vector<std::string> told(2);
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    told[static_cast<size_t>(world.rank())] = message_of<Kind>([&] {
      Agreement(*group, at::kCPU).all_or_none("loading", [&] {
        if (world.rank() == 1) throw InternalError("FlashAttention-4: no launch");
      });
    });
  });
  return told;
}

TEST(FailedDevice, makes_a_bug_a_fault_of_the_machine_on_every_rank) {
  testing::fail_guarded_device(true);
  const auto told = told_of_a_bug_on_rank_1<SystemFault>();
  testing::fail_guarded_device(false);
  EXPECT_THAT(told[0], HasSubstr("rank 1 failed while loading"));
  EXPECT_THAT(told[1], AllOf(HasSubstr("loading: the device failed: CUDA error: uncorrectable ECC error"),
                             HasSubstr("FlashAttention-4: no launch")));
  EXPECT_EQ(told_of_a_bug_on_rank_1<InternalError>()[1], "FlashAttention-4: no launch");
}

}  // namespace
}  // namespace trireme::failed_device_test
