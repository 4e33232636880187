// The launcher with /bin/sh as its ranks: codes, deaths, output, signals, restarts.
#include "trireme/launch/launch.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/launch/launch_outcome.h"
#include "tests/launch/shell_ranks.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::ends_soon;
using ::testing::HasSubstr;
using testing::launch_and_wait;
using testing::LauncherProcess;
using testing::LaunchOutcome;
using testing::message_of;
using testing::read_pid;
using testing::shell;
using testing::soon;
using testing::TemporaryFolder;

TEST(Launch, returns_0_when_every_rank_did) {
  const LaunchOutcome outcome = launch_and_wait(shell(3, "exit 0"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(Launch, gives_each_rank_its_identity) {
  const LaunchOutcome outcome = launch_and_wait(
      shell(2,
            "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR "
            "fd=${TRIREME_MASTER_FD:+yes} "
            "threads=${OMP_NUM_THREADS:+set} id=${TRIREME_RUN_ID:+set} port=${MASTER_PORT:+set} "
            "activity=${TRIREME_ACTIVITY_FD:+set} secret=${#TRIREME_SECRET}"));
  EXPECT_THAT(
      outcome.out,
      HasSubstr(
          "[rank 0] 0/2 local 0/2 at 127.0.0.1 fd=yes threads=set id=set port=set activity=set secret=64\n"));
  EXPECT_THAT(
      outcome.out,
      HasSubstr(
          "[rank 1] 1/2 local 1/2 at 127.0.0.1 fd= threads=set id=set port=set activity=set secret=64\n"));
}

TEST(Launch, tells_each_rank_the_columns_that_its_prefix_leaves_of_a_terminal) {
  LaunchOptions options = shell(11, "echo columns=$TRIREME_TERMINAL.");
  EXPECT_THAT(launch_and_wait(options).out, HasSubstr("columns=.\n")) << "no terminal";
  options.terminal_columns = 100;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] columns=91.\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 10] columns=90.\n"));
  options.terminal_columns = 5;
  EXPECT_THAT(launch_and_wait(options).out, HasSubstr("columns=.\n"));
}

TEST(Launch, prefixes_every_line_of_both_streams) {
  const LaunchOutcome outcome =
      launch_and_wait(shell(2, "echo one; echo two; echo wrong >&2; printf unfinished"));
  for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
    for (const char* line : {"one\n", "two\n", "unfinished\n"}) {
      EXPECT_THAT(outcome.out, HasSubstr(std::string(rank) + line));
    }
  }
  EXPECT_EQ(outcome.err, "[ranks 0, 1] wrong\n");  // said alike, told once
}

TEST(Launch, gives_a_reading_program_rank_0s_stdout_as_it_is_and_nothing_else) {
  LaunchOptions options =
      shell(3, "[ $RANK = 0 ] && printf '{\\r\\n 1}' || { echo other; sleep 0.1; echo wrong >&2; }; exit 0");
  options.rank_stdout = RankStdout::of_rank_0;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "{\r\n 1}");
  EXPECT_EQ(outcome.err, "[ranks 1, 2] other\n[ranks 1, 2] wrong\n");
}

TEST(Launch, returns_the_code_of_the_rank_that_failed_and_ends_the_rest) {
  const LaunchOutcome outcome =
      launch_and_wait(shell(3, "[ $RANK = 1 ] && { echo no such file >&2; exit 65; }; sleep 200"));
  EXPECT_EQ(outcome.code, 65);
  EXPECT_LT(outcome.seconds, testing::kNotEnded_seconds);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("ended with code 65 (DataError: "));
  EXPECT_THAT(outcome.err, HasSubstr("Its last lines on stderr:\n    no such file\n"));
}

TEST(Launch, does_not_say_again_what_a_rank_said_is_to_be_changed) {
  const LaunchOutcome outcome =
      launch_and_wait(shell(2, "echo trireme: ConfigError: no such flag >&2; exit 78"));
  EXPECT_EQ(outcome.code, 78);
  const std::string message = "ConfigError: no such flag";
  EXPECT_EQ(outcome.err.find(message, outcome.err.find("trireme launch: ")), std::string::npos)
      << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(message), HasSubstr("ended with code 78 (ConfigError: "),
                                 HasSubstr("Its message is above.\n")));
}

TEST(Launch, names_the_rank_that_was_killed_and_its_signal) {
  const LaunchOutcome outcome = launch_and_wait(shell(3, "[ $RANK = 2 ] && kill -9 $$; sleep 200"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_LT(outcome.seconds, testing::kNotEnded_seconds);
  EXPECT_THAT(outcome.err, HasSubstr("rank 2 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("was killed by signal 9 (Killed)"));
}

TEST(Launch, kills_ranks_that_do_not_heed_SIGTERM_after_the_grace) {
  const LaunchOutcome outcome = launch_and_wait(shell(
      2, "[ $RANK = 0 ] && { sleep 0.3; exit 1; }; trap '' TERM; for i in $(seq 2000); do sleep 0.1; done"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_GT(outcome.seconds, 1.0);
  EXPECT_LT(outcome.seconds, testing::kNotEnded_seconds);  // else nobody killed it, and it ended by itself
}

TEST(Launch, blames_the_rank_that_failed_not_the_one_that_lost_its_peer_sooner) {
  // Rank 0 sees the connection close and ends first; rank 1, the cause, takes longer to end.
  const LaunchOutcome outcome = launch_and_wait(shell(2, "[ $RANK = 0 ] && exit 75; sleep 0.3; exit 78"));
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
}

TEST(Launch, leaves_no_process_behind) {
  const TemporaryFolder folder;
  const std::string file = (folder / "pid").string();
  launch_and_wait(shell(1, "sleep 60 & echo $! > " + file + "; exit 0"));
  std::ifstream in(file);
  pid_t left = 0;
  ASSERT_TRUE(in >> left);
  EXPECT_TRUE(ends_soon(left));
}

TEST(Launch, that_is_killed_takes_its_ranks_with_it) {
  const TemporaryFolder folder;
  const std::string file = (folder / "pid").string();
  LauncherProcess launcher(
      shell(1, "echo $$ > " + file + ".new; mv " + file + ".new " + file + "; exec sleep 60"));
  ASSERT_TRUE(soon([&] { return std::filesystem::exists(file); }));
  const pid_t rank = read_pid(file);
  ASSERT_GT(rank, 0);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_TRUE(ends_soon(rank));
}

// Counts the attempts in a file, one byte each, and ends with `end` in the first.
std::string ends_once(const TemporaryFolder& folder, const std::string& end) {
  const std::string file = (folder / "attempts").string();
  return "[ $RANK = 0 ] && printf x >> " + file + "; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; " + end;
}

size_t attempts(const TemporaryFolder& folder) {
  return std::filesystem::file_size(folder / "attempts");
}

TEST(Restart, comes_after_a_lost_peer_when_asked) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(2, ends_once(folder, "exit 75"));
  options.max_restarts = 1;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(attempts(folder), 2U);
  EXPECT_THAT(outcome.err, HasSubstr("restart 1 of 1"));
}

TEST(Restart, comes_after_a_signal_that_the_launcher_did_not_send) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(2, ends_once(folder, "[ $RANK = 1 ] && kill -9 $$; sleep 60"));
  options.max_restarts = 2;
  EXPECT_EQ(launch_and_wait(options).code, 0);
  EXPECT_EQ(attempts(folder), 2U);
}

TEST(Restart, does_not_come_unasked) {
  const TemporaryFolder folder;
  EXPECT_EQ(launch_and_wait(shell(2, ends_once(folder, "exit 75"))).code, 75);
  EXPECT_EQ(attempts(folder), 1U);
}

TEST(Restart, stops_at_the_number_asked_for) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(1, "printf x >> " + (folder / "attempts").string() + "; exit 75");
  options.max_restarts = 2;
  EXPECT_EQ(launch_and_wait(options).code, 75);
  EXPECT_EQ(attempts(folder), 3U);
}

class NoRestart : public ::testing::TestWithParam<int> {};

TEST_P(NoRestart, after_an_error_that_would_come_again) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(2, ends_once(folder, cat("[ $RANK = 1 ] && exit ", GetParam(), "; exit 75")));
  options.max_restarts = 3;
  EXPECT_EQ(launch_and_wait(options).code, GetParam());
  EXPECT_EQ(attempts(folder), 1U);
}

INSTANTIATE_TEST_SUITE_P(Code, NoRestart, ::testing::Values(78, 65, 70, 1));

std::string refusal(const LaunchOptions& options) {
  return message_of<ConfigError>([&] { launch_and_wait(options); });
}

TEST(LaunchOptions, that_are_impossible_are_refused) {
  LaunchOptions options = shell(0, "exit 0");
  EXPECT_THAT(refusal(options), HasSubstr("--nproc_per_node is 0"));
  options = shell(1, "exit 0");
  options.nnodes = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--master_port"));
  options.master_port = 29400;
  EXPECT_THAT(refusal(options), HasSubstr("need --master_addr"));
  options.master_address = "127.0.0.1";  // given is given
  EXPECT_THAT(refusal(options), HasSubstr("openssl rand -hex 32"));
  options.node_rank = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--node_rank is 2"));
  options = shell(1, "exit 0");
  options.program = "/no/such/program";
  EXPECT_THAT(refusal(options), HasSubstr("cannot run /no/such/program: No such file or directory"));
  options = shell(1, "exit 0");
  options.log_dir = "/proc/nowhere";
  EXPECT_THAT(refusal(options), HasSubstr("/proc/nowhere/attempt-0 for --log_dir"));
}

TEST(LaunchOptions, that_are_no_numbers_or_out_of_range_are_refused) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0, 1e300}) {
    for (double LaunchOptions::*seconds :
         {&LaunchOptions::grace_seconds, &LaunchOptions::stop_seconds, &LaunchOptions::join_seconds}) {
      LaunchOptions options = shell(1, "exit 0");
      options.*seconds = value;
      EXPECT_THAT(refusal(options), HasSubstr("_seconds is ")) << value;
    }
  }
  LaunchOptions options = shell(1, "exit 0");
  options.master_port = 65536;
  EXPECT_THAT(refusal(options), HasSubstr("--master_port is 65536"));
}

}  // namespace
}  // namespace trireme
