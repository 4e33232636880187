// What the engine's flags become.
#include "trireme/cli/engine_flags.h"

#include <limits>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EngineOptions resolved(const std::vector<std::string>& arguments, int local_size = 1) {
  const int threads = at::get_num_threads();
  EngineFlags flags;
  OptionParser parser("test", "");
  flags.declare(parser);
  parser.parse(arguments);
  EngineOptions options;
  try {
    options = flags.resolve({.size = local_size, .local_size = local_size});
  } catch (...) {
    at::set_num_threads(threads);
    throw;
  }
  at::set_num_threads(threads);
  return options;
}

TEST(EngineFlags, host_memory_limit_is_of_the_machine_and_too_little_to_be_meant_is_refused) {
  EXPECT_EQ(resolved({}).host_memory_limit_bytes, 0);
  EXPECT_EQ(resolved({"--host_memory_limit", "100g"}, 8).host_memory_limit_bytes, int64_t{100} << 30);
  EXPECT_EQ(resolved({"--host_memory_limit", "128m"}, 2).host_memory_limit_bytes, int64_t{128} << 20);
  EXPECT_THAT(testing::message_of<ConfigError>([] {
                resolved({"--host_memory_limit", "60"});
              }),
              AllOf(HasSubstr("--host_memory_limit is 60 bytes"), HasSubstr("200g")));
  EXPECT_THAT(testing::message_of<ConfigError>([] {
                resolved({"--host_memory_limit", "127m"}, 2);
              }),
              HasSubstr("for 2 ranks"));
  EXPECT_THROW(resolved({"--host_memory_limit", "-1"}), ConfigError);
}

TEST(EngineFlags, ddp_timeout_is_1_second_to_30_days) {
  EngineFlags flags;
  flags.ddp_timeout = 2592000;
  EXPECT_EQ(flags.timeout(), std::chrono::hours(30 * 24));
  for (const int64_t seconds : {int64_t{0}, int64_t{2592001}, std::numeric_limits<int64_t>::max()})
    EXPECT_THAT(testing::message_of<ConfigError>([&] {
                  resolved({"--ddp_timeout", std::to_string(seconds)});
                }),
                HasSubstr("expected 1 to 2592000 seconds"));
}

}  // namespace
}  // namespace trireme
