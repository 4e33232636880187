// The launcher's arguments, and where those of its command begin.
#include "trireme/cli/launch_arguments.h"

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
              HasSubstr("--nnodes: 'two' is not a whole number"));
  EXPECT_THAT(argument_refusal({"--nnodes", "99999999999", "--", "train"}),
              HasSubstr("--nnodes is 99999999999; expected a number from 1 to 65536"));
  for (const char* value : {"nan", "inf", "-1", "1e300"})
    for (const char* flag : {"--grace_seconds", "--stop_seconds", "--join_seconds"})
      EXPECT_THAT(argument_refusal({flag, value, "--", "train"}), HasSubstr(flag)) << value;
  EXPECT_THAT(argument_refusal({"--nnodes", "--", "train"}), HasSubstr("--nnodes needs a value"));
  EXPECT_THAT(argument_refusal({"--nproc_per_node", "2"}), HasSubstr("no command to run"));
}

TEST(LaunchArguments, of_hosts_are_those_of_deepspeeds_launcher) {
  const auto options =
      parse_launch_arguments({"--hostfile", "hosts", "--include", "host1:0,1@host2", "--ssh_port", "22",
                              "--launcher_args", "-i key", "--", "train"});
  EXPECT_EQ(options->hosts.hostfile, "hosts");
  EXPECT_EQ(options->hosts.include, "host1:0,1@host2");
  EXPECT_EQ(options->hosts.ssh_port, 22);
  EXPECT_EQ(parse_launch_arguments({"--num_gpus=4", "train"})->hosts.num_gpus, 4);
  EXPECT_THAT(argument_refusal({"--hostfile", "hosts", "--nproc_per_node", "1", "--", "train"}),
              AllOf(HasSubstr("--nproc_per_node cannot stand beside --hostfile"), HasSubstr("slots")));
  EXPECT_THAT(argument_refusal({"--hostfile", "hosts", "--elastic", "--", "train"}),
              HasSubstr("--max_restarts N"));
  EXPECT_THAT(argument_refusal({"--num_gpus", "2", "--node_rank", "0", "--", "train"}),
              HasSubstr("--node_rank cannot stand beside"));
  EXPECT_THAT(argument_refusal({"--ssh_port", "22", "--", "train"}), HasSubstr("--hostfile FILE"));
}

}  // namespace
}  // namespace trireme::launch_test
