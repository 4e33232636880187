// Which rank is to blame and whether a restart may help, over made-up ends of ranks.
#include "trireme/launch/restart_rule.h"

#include <csignal>

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

RankEnd code(int rank, int code) {
  RankEnd end;
  end.rank = rank;
  end.code = code;
  return end;
}

RankEnd killed_by(int rank, int signal) {
  RankEnd end;
  end.rank = rank;
  end.signal = signal;
  return end;
}

// One that the launcher asked to end, and killed.
RankEnd killed_after_asking(int rank, const RankLook& look) {
  RankEnd end = killed_by(rank, SIGKILL);
  end.asked = end.killed = true;
  end.look = look;
  return end;
}

RankEnd gave_up(int rank, double waited_seconds) {
  RankEnd end = code(rank, 75);
  end.waited_seconds = waited_seconds;
  return end;
}

RankEnd of_machine_fault(int rank, const std::string& message) {
  RankEnd end = code(rank, SystemFault::kExitCode);
  end.last_lines = {"trireme: SystemFault: " + message};
  return end;
}

int blamed(const std::vector<RankEnd>& ends) {
  const auto end = judge(ends, /*stop_asked=*/false).culprit;
  return end ? end->rank : -1;
}

TEST(Culprit, is_nobody_where_all_went_well) {
  EXPECT_EQ(blamed({code(0, 0), code(1, 0)}), -1);
}

TEST(Culprit, is_the_first_that_failed_of_its_own_accord) {
  EXPECT_EQ(blamed({code(0, 75), killed_by(2, SIGKILL), code(1, 65)}), 2);
  EXPECT_EQ(blamed({code(0, 75), code(1, 75)}), 0);
}

TEST(Culprit, is_not_one_that_was_asked_to_end_unless_it_says_more) {
  RankEnd told = killed_by(1, SIGTERM);
  told.asked = true;
  EXPECT_EQ(blamed({told, code(0, 75)}), 0);
  RankEnd error = code(1, 65);
  error.asked = true;
  EXPECT_EQ(blamed({code(0, 75), error}), 1);
}

TEST(Culprit, is_not_one_whose_error_points_at_another_rank) {
  RankEnd echo = code(1, 78);
  echo.last_lines = {"trireme: ConfigError: rank 0 failed while preparing; its own message says why"};
  EXPECT_EQ(blamed({echo, code(0, 78)}), 0);
  EXPECT_EQ(blamed({echo, code(0, 75)}), 1);  // no better one
}

TEST(Culprit, is_the_rank_whose_machine_failed_and_not_those_that_waited_for_it) {
  const RankEnd fault = of_machine_fault(2, "the device failed: an illegal memory access");
  const RankEnd echo = of_machine_fault(1, "rank 2 failed while saving; its own message says why");
  EXPECT_EQ(blamed({gave_up(0, 30), fault, killed_after_asking(1, {.stopped = true})}), 2);
  EXPECT_EQ(blamed({echo, fault}), 2);
  const Outcome outcome = judge({gave_up(0, 30), fault}, false);
  EXPECT_EQ(outcome.code, 75);
  EXPECT_FALSE(outcome.hung);
  EXPECT_TRUE(outcome.may_restart);
  EXPECT_FALSE(judge({fault}, true).may_restart);
}

TEST(Culprit, is_the_rank_that_was_stopped_and_not_the_survivor_that_gave_up) {
  EXPECT_EQ(blamed({gave_up(0, 30), killed_after_asking(1, {.stopped = true})}), 1);
  EXPECT_EQ(
      blamed({gave_up(0, 30), killed_after_asking(1, {.known = true, .waiting = true, .still_seconds = 31}),
              killed_after_asking(2, {.stopped = true, .known = true, .still_seconds = 3})}),
      2);
}

TEST(Culprit, is_the_rank_that_stood_still_longest_while_others_waited) {
  const RankLook waits{.known = true, .waiting = true, .still_seconds = 31};
  const RankLook still{.known = true, .still_seconds = 32};
  const RankLook moves{.known = true, .still_seconds = 2};
  EXPECT_EQ(blamed({gave_up(0, 30), killed_after_asking(1, waits), killed_after_asking(2, still)}), 2);
  RankEnd ended = code(3, 75);  // it ended when asked to
  ended.asked = true;
  ended.look = moves;
  EXPECT_EQ(blamed({gave_up(0, 30), ended}), 0);
  ended.look = still;
  EXPECT_EQ(blamed({gave_up(0, 30), ended}), 3);
}

TEST(Culprit, is_a_rank_of_which_nothing_is_known_when_it_does_not_end) {
  EXPECT_EQ(blamed({gave_up(0, 0), killed_after_asking(1, {})}), 1);
}

TEST(Culprit, is_not_a_hung_rank_where_another_failed_of_its_own_accord) {
  EXPECT_EQ(blamed({killed_by(0, SIGSEGV), killed_after_asking(1, {.stopped = true})}), 0);
}

TEST(Judge, returns_the_code_of_the_culprit_and_75_for_one_that_hung) {
  EXPECT_EQ(judge({code(0, 75), code(1, 65)}, false).code, 65);
  EXPECT_EQ(judge({killed_by(1, SIGSEGV)}, false).code, 128 + SIGSEGV);
  const Outcome hung = judge({gave_up(0, 30), killed_after_asking(1, {.stopped = true})}, false);
  EXPECT_TRUE(hung.hung);
  EXPECT_EQ(hung.code, 75);
  EXPECT_TRUE(hung.may_restart);
}

TEST(Judge, restarts_after_a_lost_peer_or_a_signal_and_after_nothing_else) {
  EXPECT_TRUE(judge({code(0, 75)}, false).may_restart);
  EXPECT_TRUE(judge({killed_by(0, SIGKILL), code(1, 75)}, false).may_restart);
  EXPECT_FALSE(judge({code(0, 1)}, false).may_restart);
  EXPECT_FALSE(judge({code(0, 0)}, false).may_restart);
  EXPECT_FALSE(judge({code(0, 75)}, true).may_restart);
}

TEST(Judge, never_restarts_after_an_error_that_would_come_again_on_any_rank) {
  for (const ExitMeaning& one : exit_meanings()) {
    if (one.code == 0 || one.restart_may_cure) continue;
    EXPECT_FALSE(judge({killed_by(0, SIGKILL), code(1, one.code)}, false).may_restart) << one.code;
    RankEnd late = code(1, one.code);
    late.asked = true;
    EXPECT_FALSE(judge({code(0, 75), late}, false).may_restart) << one.code;
  }
}

TEST(Judge, blames_nobody_for_ending_as_asked) {
  RankEnd told = killed_by(1, SIGTERM);
  told.asked = true;
  const Outcome stopped = judge({told, code(0, 75)}, true);
  EXPECT_FALSE(stopped.culprit);
  EXPECT_EQ(stopped.code, 75);
  EXPECT_EQ(judge({code(0, 75), killed_after_asking(1, {})}, true).code, 128 + SIGKILL);
  EXPECT_EQ(judge({code(0, 0), code(1, 0)}, true).code, 0);
  EXPECT_EQ(judge({code(0, 65), code(1, 75)}, true).culprit->rank, 0);
}

}  // namespace
}  // namespace trireme
