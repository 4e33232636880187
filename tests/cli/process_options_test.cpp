// What this process is told.
#include "trireme/cli/process_options.h"

#include <limits>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/listening_socket.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EngineOptions resolved(const std::vector<std::string>& arguments, int local_size = 1) {
  const int threads = at::get_num_threads();
  ProcessOptions process;
  EngineOptions options;
  OptionParser parser("test", "");
  process.list(parser);
  list_engine_options(parser, options);
  parser.parse(arguments);
  try {
    process.prepare(options, {.size = local_size, .local_size = local_size});
  } catch (...) {
    at::set_num_threads(threads);
    throw;
  }
  at::set_num_threads(threads);
  return options;
}

TEST(ProcessOptions, that_ask_for_a_gpu_where_there_is_none_are_told_why) {
  if (cuda_devices() > 0) GTEST_SKIP() << "a GPU is here";
  const std::string refusal = testing::message_of<ConfigError>([] { resolved({"--device", "cuda"}); });
  EXPECT_THAT(refusal, HasSubstr("no GPU can be used: "));
  EXPECT_THAT(refusal, HasSubstr(at::hasCUDA() ? "NVIDIA" : "this build has no CUDA"));
}

TEST(ProcessOptions, host_memory_limit_is_of_the_machine_and_too_little_to_be_meant_is_refused) {
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

// 192.0.2.1 is reserved for documentation (RFC 5737); the port is taken, so that rank 0 waits for nobody.
TEST(ProcessOptions, a_run_without_a_secret_that_other_machines_reach_is_warned_of) {
  const ListeningSocket taken("127.0.0.1", 0);
  const RankIdentity identity{.size = 2, .master_address = "192.0.2.1", .master_port = taken.port()};
  ::testing::internal::CaptureStderr();
  const std::string refusal =
      testing::message_of<ConfigError>([&] { join_run(identity, EngineOptions(), ProcessOptions()); });
  const std::string warned = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(refusal, HasSubstr("cannot listen"));
  EXPECT_THAT(warned, AllOf(HasSubstr("trireme: warning: "), HasSubstr("no secret")));
}

TEST(ProcessOptions, ddp_timeout_is_1_second_to_30_days) {
  ProcessOptions process;
  OptionParser parser("test", "");
  process.list(parser);
  parser.parse({"--ddp_timeout", "2592000"});
  EXPECT_EQ(process.timeout(), std::chrono::hours(30 * 24));
  for (const int64_t seconds : {int64_t{0}, int64_t{2592001}, std::numeric_limits<int64_t>::max()})
    EXPECT_THAT(testing::message_of<ConfigError>([&] {
                  resolved({"--ddp_timeout", std::to_string(seconds)});
                }),
                HasSubstr("from 1 to 2592000 (seconds"));
}

}  // namespace
}  // namespace trireme
