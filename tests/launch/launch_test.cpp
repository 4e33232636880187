// The launcher with /bin/sh as its ranks: codes, deaths, output, signals, restarts.
#include "trireme/launch/launch.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/launch/launch_outcome.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::launch_and_wait;
using testing::LaunchOutcome;
using testing::message_of;
using testing::TemporaryFolder;

LaunchOptions shell(int nproc, const std::string& script) {
  LaunchOptions options;
  options.nproc = nproc;
  options.program = "/bin/sh";
  options.command = {"-c", script};
  options.grace_seconds = 1;
  return options;
}

TEST(Launch, returns_0_when_every_rank_did) {
  const LaunchOutcome outcome = launch_and_wait(shell(3, "exit 0"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(Launch, gives_each_rank_its_place) {
  const LaunchOutcome outcome = launch_and_wait(
      shell(2,
            "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR "
            "fd=${TRIREME_MASTER_FD:+yes} "
            "threads=${OMP_NUM_THREADS:+set} id=${TRIREME_RUN_ID:+set} port=${MASTER_PORT:+set}"));
  EXPECT_THAT(outcome.out,
              HasSubstr("[rank 0] 0/2 local 0/2 at 127.0.0.1 fd=yes threads=set id=set port=set\n"));
  EXPECT_THAT(outcome.out,
              HasSubstr("[rank 1] 1/2 local 1/2 at 127.0.0.1 fd= threads=set id=set port=set\n"));
}

TEST(Launch, counts_ranks_of_the_machines_before_this_one) {
  LaunchOptions options =
      shell(2, "echo $RANK/$WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT fd=$TRIREME_MASTER_FD.");
  options.nnodes = 3;
  options.node_rank = 2;
  options.master_address = "machine0";
  options.master_port = 29400;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_THAT(outcome.out, HasSubstr("[rank 4] 4/6 at machine0:29400 fd=.\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 5] 5/6 at machine0:29400 fd=.\n"));
}

TEST(Launch, prefixes_every_line_of_both_streams) {
  const LaunchOutcome outcome =
      launch_and_wait(shell(2, "echo one; echo two; echo wrong >&2; printf unfinished"));
  for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
    for (const char* line : {"one\n", "two\n", "unfinished\n"}) {
      EXPECT_THAT(outcome.out, HasSubstr(std::string(rank) + line));
    }
    EXPECT_THAT(outcome.err, HasSubstr(std::string(rank) + "wrong\n"));
  }
}

TEST(Launch, gives_a_reading_program_rank_0s_stdout_as_it_is_and_nothing_else) {
  LaunchOptions options =
      shell(3, "echo wrong >&2; [ $RANK = 0 ] && printf '{\\r\\n 1}' || echo other; exit 0");
  options.rank_stdout = RankStdout::of_rank_0;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "{\r\n 1}");
  for (const char* line : {"[rank 0] wrong\n", "[rank 1] wrong\n", "[rank 1] other\n", "[rank 2] other\n"})
    EXPECT_THAT(outcome.err, HasSubstr(line));
}

TEST(Launch, returns_the_code_of_the_rank_that_failed_and_ends_the_rest) {
  const LaunchOutcome outcome =
      launch_and_wait(shell(3, "[ $RANK = 1 ] && { echo no such file >&2; exit 65; }; sleep 60"));
  EXPECT_EQ(outcome.code, 65);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("ended with code 65"));
  EXPECT_THAT(outcome.err, HasSubstr("Its last lines on stderr:\n    no such file\n"));
}

TEST(Launch, names_the_rank_that_was_killed_and_its_signal) {
  const LaunchOutcome outcome = launch_and_wait(shell(3, "[ $RANK = 2 ] && kill -9 $$; sleep 60"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_THAT(outcome.err, HasSubstr("rank 2 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("was killed by signal 9 (Killed)"));
}

TEST(Launch, kills_ranks_that_do_not_heed_SIGTERM_after_the_grace) {
  const LaunchOutcome outcome = launch_and_wait(
      shell(2, "[ $RANK = 0 ] && { sleep 0.3; exit 1; }; trap '' TERM; while :; do sleep 0.1; done"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_GT(outcome.seconds, 1.0);
  EXPECT_LT(outcome.seconds, 6);
}

TEST(Launch, blames_the_rank_that_failed_not_the_one_that_lost_its_peer_sooner) {
  // Rank 0 sees the connection close and ends first; rank 1, the cause, takes longer to end.
  const LaunchOutcome outcome = launch_and_wait(shell(2, "[ $RANK = 0 ] && exit 75; sleep 0.3; exit 78"));
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
}

// Whether a process runs no more, soon; a zombie that nobody has collected yet does not run.
bool ends_soon(pid_t process) {
  for (int i = 0; i < 250; ++i) {
    std::string state;
    std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
    std::getline(stat, state);
    if (state.empty() || state.find(") Z ") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
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

TEST(Launch, passes_SIGTERM_on_and_lets_the_ranks_finish) {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  // The launcher runs in a child of this test, so that the signal meets nobody else.
  const pid_t child = ::fork();
  if (child == 0) {
    std::ostringstream out, err;
    int code = 99;
    try {
      code = launch(shell(2, "trap 'echo saved > " + ready + ".$RANK; exit 7' TERM; : > " + ready +
                                 "$RANK; while :; do sleep 0.05; done"),
                    out, err);
    } catch (const Error&) {
      code = 98;
    }
    ::_exit(code);
  }
  for (int i = 0; i < 250; ++i) {
    if (std::filesystem::exists(ready + "0") && std::filesystem::exists(ready + "1")) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::kill(child, SIGTERM);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(std::filesystem::exists(ready + ".0"));
  EXPECT_TRUE(std::filesystem::exists(ready + ".1"));
}

TEST(Launch, that_is_killed_takes_its_ranks_with_it) {
  const TemporaryFolder folder;
  const std::string file = (folder / "pid").string();
  const pid_t child = ::fork();
  if (child == 0) {
    std::ostringstream out, err;
    launch(shell(1, "echo $$ > " + file + ".new; mv " + file + ".new " + file + "; exec sleep 60"), out, err);
    ::_exit(0);
  }
  for (int i = 0; i < 250 && !std::filesystem::exists(file); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  pid_t rank = 0;
  ASSERT_TRUE(std::ifstream(file) >> rank);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
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
  EXPECT_THAT(refusal(options), HasSubstr("--master_addr"));
  options.master_address = "machine0";
  options.max_restarts = 1;
  EXPECT_THAT(refusal(options), HasSubstr("--max_restarts works on one machine"));
  options.max_restarts = 0;
  options.node_rank = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--node_rank is 2"));
  options = shell(1, "exit 0");
  options.program = "/no/such/program";
  EXPECT_THAT(refusal(options), HasSubstr("cannot run /no/such/program: No such file or directory"));
}

TEST(LaunchArguments, take_underscores_hyphens_and_equal_signs) {
  const LaunchOptions options =
      parse_launch_arguments({"--nproc-per-node", "4", "--max_restarts=2", "--master_addr", "host",
                              "--grace_seconds", "0.5", "--", "train", "--seed", "1"});
  EXPECT_EQ(options.nproc, 4);
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_EQ(options.master_address, "host");
  EXPECT_EQ(options.grace_seconds, 0.5);
  EXPECT_THAT(options.command, ::testing::ElementsAre("train", "--seed", "1"));
}

std::string argument_refusal(const std::vector<std::string>& arguments) {
  return message_of<ConfigError>([&] { parse_launch_arguments(arguments); });
}

TEST(LaunchArguments, that_are_wrong_are_refused_with_a_suggestion) {
  EXPECT_THAT(argument_refusal({"--nproc", "2", "--", "train"}),
              HasSubstr("unknown flag --nproc; did you mean --"));
  EXPECT_THAT(argument_refusal({"--max_restart", "2", "--", "train"}),
              HasSubstr("did you mean --max_restarts?"));
  EXPECT_THAT(argument_refusal({"--nnodes", "two", "--", "train"}), HasSubstr("--nnodes is 'two'"));
  EXPECT_THAT(argument_refusal({"--nnodes", "--", "train"}), HasSubstr("--nnodes needs a value"));
  EXPECT_THAT(argument_refusal({"--nproc_per_node", "2"}), HasSubstr("no command to run"));
}

}  // namespace
}  // namespace trireme
