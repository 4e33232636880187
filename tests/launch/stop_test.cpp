// Signals that ask the launcher to stop: which of them, how often, and ranks that do not end. Shell scripts
// are the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/shell_ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::all_there;
using ::testing::HasSubstr;
using testing::LauncherProcess;
using ::testing::Not;
using testing::shell;
using testing::TemporaryFolder;
using testing::there;

// A rank that says it is there, and that takes a while to save when it is asked to stop.
std::string saves(const TemporaryFolder& folder, const std::string& seconds) {
  const auto file = [&](const char* name) { return (folder / name).string() + ".$RANK"; };
  return "trap 'echo asked >> " + file("asked") + "; sleep " + seconds + "; : > " + file("saved") +
         "; exit 75' TERM; " + there(folder) + "while :; do sleep 0.05; done";
}

class StopSignal : public ::testing::TestWithParam<int> {};

TEST_P(StopSignal, is_passed_on_and_the_ranks_may_save) {
  const TemporaryFolder folder;
  LauncherProcess launcher(shell(2, saves(folder, "0.1")));
  ASSERT_TRUE(all_there(folder, 2));
  launcher.send(GetParam());
  EXPECT_EQ(launcher.wait(), 75) << launcher.err();
  for (const char* name : {"saved.0", "saved.1"}) EXPECT_TRUE(fs::exists(folder / name)) << name;
  EXPECT_THAT(launcher.err(), HasSubstr("stopped by signal " + std::to_string(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(All, StopSignal,
                         ::testing::Values(SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT));

TEST(Stop, repeats_of_any_kind_within_two_seconds_are_one_request) {
  const TemporaryFolder folder;
  LauncherProcess launcher(shell(2, saves(folder, "0.5")));
  ASSERT_TRUE(all_there(folder, 2));
  for (const int signal : {SIGTERM, SIGTERM, SIGINT, SIGTERM}) {
    launcher.send(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(launcher.wait(), 75) << launcher.err();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(fs::exists(folder / ("saved." + std::to_string(rank))));
    EXPECT_EQ(testing::bytes_of(folder / ("asked." + std::to_string(rank))), "asked\n");
  }
}

TEST(Stop, a_second_request_ends_the_ranks_at_once_and_names_them) {
  const TemporaryFolder folder;
  LauncherProcess launcher(shell(2, saves(folder, "30")));
  ASSERT_TRUE(all_there(folder, 2));
  launcher.send(SIGTERM);
  ASSERT_TRUE(all_there(folder, 2, "asked"));
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // the rule's own two seconds
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_THAT(launcher.err(), HasSubstr("ranks 0, 1 did not end when asked to stop and were killed"));
}

TEST(Stop, has_a_deadline_after_which_ranks_are_killed_and_named) {
  const TemporaryFolder folder;
  LaunchOptions options =
      shell(2, "[ $RANK = 0 ] && trap '' TERM; " + there(folder) + "for i in $(seq 200); do sleep 0.1; done");
  options.stop_seconds = 0.5;
  LauncherProcess launcher(options);
  ASSERT_TRUE(all_there(folder, 2));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_THAT(launcher.err(), HasSubstr("rank 0 did not end when asked to stop and was killed"));
  EXPECT_THAT(launcher.err(), Not(HasSubstr("rank 1 did")));
}

TEST(Stop, leaves_alone_a_signal_that_was_ignored_before) {
  const TemporaryFolder folder;
  LauncherProcess launcher(shell(1, saves(folder, "0")), [](const auto& options, auto& out, auto& err) {
    ::signal(SIGHUP, SIG_IGN);  // nohup
    return launch(options, out, err);
  });
  ASSERT_TRUE(all_there(folder, 1));
  launcher.send(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(fs::exists(folder / "asked.0"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 75);
}

TEST(Stop, that_comes_after_the_end_does_not_change_the_code) {
  LauncherProcess launcher(shell(1, "exit 3"), [](const auto& options, auto& out, auto& err) {
    const int code = launch(options, out, err);
    ::raise(SIGTERM);
    return code;
  });
  EXPECT_EQ(launcher.wait(), 3);
}

TEST(Stop, between_two_attempts_is_heard) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(1, ": >> " + (folder / "there.0").string() + "; exit 75");
  options.max_restarts = 1000;
  LauncherProcess launcher(options);
  ASSERT_TRUE(all_there(folder, 1));
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.wait(), 75);
  EXPECT_THAT(launcher.err(), HasSubstr("stopped by signal"));
}

TEST(Stop, that_one_rank_was_asked_for_is_one_of_the_run_and_no_reason_to_restart) {
  for (const std::string end :
       {"echo 'trireme: asked to stop before training began' >&2; exit 75", "kill -HUP $$"}) {
    LaunchOptions options =
        shell(2, "[ $RANK = 1 ] && { " + end +
                     "; }; trap 'exit 75' TERM; for i in $(seq 100); do sleep 0.05; done");
    options.max_restarts = 3;
    LauncherProcess launcher(options);
    EXPECT_EQ(launcher.wait(), 75) << launcher.err();
    EXPECT_THAT(launcher.err(), HasSubstr("stopped by signal"));
    EXPECT_THAT(launcher.err(), Not(HasSubstr("starting all ranks again")));
  }
}

TEST(Stop, that_a_rank_answers_with_an_error_shows_the_error) {
  const TemporaryFolder folder;
  LauncherProcess launcher(
      shell(2, "trap '[ $RANK = 1 ] && { echo disk full >&2; exit 65; }; exit 75' TERM; " + there(folder) +
                   "while :; do sleep 0.05; done"));
  ASSERT_TRUE(all_there(folder, 2));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 65);
  EXPECT_THAT(launcher.err(), HasSubstr("    disk full\n"));
}

}  // namespace
}  // namespace trireme
