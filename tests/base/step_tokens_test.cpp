// A step's tokens of a rank against its host memory.
#include "trireme/base/step_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StepTokens, that_no_memory_holds_are_refused_with_their_factors) {
  StepTokens step{.sample_tokens = 1024, .batch = 1000, .accumulation = 1000};
  EXPECT_THAT(testing::message_of<ConfigError>([&] { check_step_tokens(step, int64_t{8} << 30); }),
              AllOf(HasSubstr("1000 samples of --per_device_train_batch_size"), HasSubstr("1,024"),
                    HasSubstr("8.0 GiB")));
  step.sharing_ranks = 4;
  EXPECT_NO_THROW(check_step_tokens(step, int64_t{8} << 30));
}

TEST(StepTokens, do_not_overflow) {
  const StepTokens most{int64_t{1} << 40, 1, int64_t{1} << 20, int64_t{1} << 20};
  EXPECT_FALSE(most.fit(int64_t{1} << 50));
}

}  // namespace
}  // namespace trireme
