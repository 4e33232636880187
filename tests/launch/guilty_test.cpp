// What the launcher says of a failed run: who is to blame, what it was doing, what it wrote. Shell scripts
// are the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/machine_identity.h"
#include "trireme/base/rank_activity.h"
#include "trireme/launch/report.h"

#include "tests/launch/launch_outcome.h"
#include "tests/launch/shell_ranks.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::launch_and_wait;
using testing::LaunchOutcome;
using ::testing::Not;
using testing::shell;

TEST(Guilty, a_stopped_rank_is_named_and_not_the_survivor_that_gave_up) {
  const LaunchOutcome outcome = launch_and_wait(
      shell(2, "[ $RANK = 1 ] && kill -STOP $$; sleep 0.3; echo waited in vain >&2; exit 75"));
  EXPECT_EQ(outcome.code, 75);
  EXPECT_THAT(outcome.err, HasSubstr("trireme launch: rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr(" on " + host_name() + ") hung: it was stopped (SIGSTOP)"));
  EXPECT_THAT(outcome.err, HasSubstr("It wrote nothing to stderr.\n"));
  EXPECT_THAT(outcome.err, HasSubstr("which ended with it, wrote:\n    waited in vain\n"));
}

TEST(Guilty, a_rank_that_does_not_end_is_named_and_not_the_survivor_that_gave_up) {
  const LaunchOutcome outcome = launch_and_wait(shell(
      2, "[ $RANK = 0 ] && { sleep 0.2; exit 75; }; trap '' TERM; for i in $(seq 80); do sleep 0.1; done"));
  EXPECT_EQ(outcome.code, 75);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("hung: it did not end when it was asked to"));
}

TEST(Guilty, a_rank_that_was_stopped_and_stays_so_after_the_others_are_done_is_killed_and_named) {
  LaunchOptions options = shell(2, "[ $RANK = 1 ] && kill -STOP $$; exit 0");
  options.stop_seconds = 0.5;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, HasSubstr("trireme launch: rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("was stopped (SIGSTOP), did not go on after the others had ended"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("the other ranks were ended")));
}

TEST(Guilty, a_hung_run_is_started_again) {
  LaunchOptions options = shell(
      2, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && kill -STOP $$; sleep 0.2; exit 75");
  options.max_restarts = 1;
  EXPECT_EQ(launch_and_wait(options).code, 0);
}

TEST(Guilty, a_rank_that_only_points_at_another_is_not_quoted) {
  const LaunchOutcome outcome = launch_and_wait(shell(
      2,
      "[ $RANK = 1 ] && { echo 'rank 0 failed while preparing; its own message says why' >&2; exit 78; }; "
      "sleep 0.4; echo no such model >&2; exit 78"));
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("    no such model\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("    rank 0 failed")));
}

TEST(Guilty, a_rank_that_wrote_nothing_has_the_others_word_beside_it) {
  const LaunchOutcome outcome = launch_and_wait(shell(
      2, "[ $RANK = 1 ] && { sleep 0.1; kill -9 $$; }; sleep 0.3; echo connection closed >&2; exit 75"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("It wrote nothing to stderr.\n  rank 0 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("wrote:\n    connection closed\n"));
}

TEST(Report, says_what_a_dead_rank_was_doing) {
  RankEnd end;
  end.rank = 3;
  end.host = "node7";
  end.pid = 4242;
  end.signal = SIGSEGV;
  RankActivityState state;
  state.phase = RankPhase::training;
  state.step = 7;
  state.layer = 3;
  state.direction = PassDirection::backward;
  state.action = "all_to_all of group 'ulysses'";
  state.waiting = true;
  state.seconds = 12;
  end.look = {.known = true, .waiting = true, .still_seconds = 12, .doing = describe(state)};
  end.last_lines = {"last words"};
  const std::string text = report(judge({end}, false), {end}, RanksShown::here);
  EXPECT_THAT(
      text,
      HasSubstr("rank 3 (process 4242 on node7) was killed by signal 11 (Segmentation fault); it was in "
                "all_to_all of group 'ulysses' for 12 s, step 7, layer 3 backward. Its last lines"));
}

TEST(Report, quotes_a_refusal_that_another_launcher_has_shown) {
  RankEnd end;
  end.code = ConfigError::kExitCode;
  end.last_lines = {"trireme: ConfigError: no such flag"};
  EXPECT_THAT(report(judge({end}, false), {end}, RanksShown::here), HasSubstr("Its message is above.\n"));
  EXPECT_THAT(report(judge({end}, false), {end}, RanksShown::by_their_launchers),
              HasSubstr("Its last lines on stderr:\n    trireme: ConfigError: no such flag\n"));
}

}  // namespace
}  // namespace trireme
