// The launcher's arguments, and where those of its command begin.
#include "trireme/cli/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme::launch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::testing::message_of;

TEST(LaunchArguments, take_underscores_hyphens_and_equal_signs) {
  const auto options =
      parse_launch_arguments({"--nproc-per-node", "4", "--max_restarts=2", "--master_addr", "host",
                              "--grace_seconds", "0.5", "--", "train", "--seed", "1"});
  EXPECT_EQ(options->nproc, 4);
  EXPECT_EQ(options->max_restarts, 2);
  EXPECT_EQ(options->master_address, "host");
  EXPECT_EQ(options->grace_seconds, 0.5);
  EXPECT_THAT(options->command, ::testing::ElementsAre("train", "--seed", "1"));
}

std::string argument_refusal(const std::vector<std::string>& arguments) {
  return message_of<ConfigError>([&] { parse_launch_arguments(arguments); });
}

TEST(LaunchArguments, that_are_wrong_are_refused_with_a_suggestion) {
  EXPECT_THAT(argument_refusal({"--nproc", "2", "--", "train"}),
              HasSubstr("no flag --nproc: trireme launch --nproc_per_node N"));
  EXPECT_THAT(argument_refusal({"--max_restart", "2", "--", "train"}),
              AllOf(HasSubstr("did you mean --max_restarts?"), HasSubstr("come after --")));
  EXPECT_THAT(argument_refusal({"--nnodes", "two", "--", "train"}),
              HasSubstr("--nnodes: 'two' is not a number"));
  EXPECT_THAT(argument_refusal({"--nnodes", "99999999999", "--", "train"}),
              HasSubstr("--nnodes is 99999999999; expected a number from 1 to 65536"));
  for (const char* value : {"nan", "inf", "-1", "1e300"})
    for (const char* flag : {"--grace_seconds", "--stop_seconds", "--join_seconds"})
      EXPECT_THAT(argument_refusal({flag, value, "--", "train"}), HasSubstr(flag)) << value;
  EXPECT_THAT(argument_refusal({"--nnodes", "--", "train"}), HasSubstr("--nnodes needs a value"));
  EXPECT_THAT(argument_refusal({"--nproc_per_node", "2"}), HasSubstr("no command to run"));
}

}  // namespace
}  // namespace trireme::launch_test
