// What a launcher reads of a rank, of this process or another, alive, stopped or dead.
#include "trireme/base/rank_activity.h"

#include <atomic>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::rank_activity_test {
namespace {

RankActivityState waiting_state() {
  return {.phase = RankPhase::training,
          .step = 7,
          .layer = 3,
          .direction = PassDirection::backward,
          .action = "all_to_all of group 'ulysses'",
          .waiting = true,
          .seconds = 12.9};
}

TEST(RankActivity, is_told_in_one_sentence) {
  RankActivityState state = waiting_state();
  EXPECT_EQ(describe(state), "in all_to_all of group 'ulysses' for 12 s, step 7, layer 3 backward");
  state.waiting = false;
  EXPECT_EQ(describe(state),
            "computing for 12 s, after all_to_all of group 'ulysses', step 7, layer 3 backward");
  state.phase = RankPhase::saving;
  state.waiting = true;
  state.layer = -1;
  EXPECT_EQ(describe(state), "in all_to_all of group 'ulysses' for 12 s, saving a checkpoint, step 7");
  RankActivityState connecting;
  connecting.phase = RankPhase::connecting;
  connecting.seconds = 2;
  EXPECT_EQ(describe(connecting), "connecting to the other ranks for 2 s");
  EXPECT_EQ(describe({}), "starting for 0 s");
}

TEST(RankActivity, holds_what_was_set_last) {
  RankActivity activity;
  EXPECT_EQ(describe(activity.state()), "starting for 0 s");
  activity.set_phase(RankPhase::training);
  activity.set_step(7);
  activity.set_layer(3, PassDirection::forward);
  {
    const ActivityWait wait(activity, "all_to_all", "ulysses");
    EXPECT_EQ(describe(activity.state()),
              "in all_to_all of group 'ulysses' for 0 s, step 7, layer 3 forward");
  }
  EXPECT_FALSE(activity.state().waiting);
  activity.leave_layers();
  EXPECT_EQ(describe(activity.state()), "computing for 0 s, after all_to_all of group 'ulysses', step 7");
  {
    const ActivityWait wait(activity);
    EXPECT_EQ(describe(activity.state()), "in all_to_all of group 'ulysses' for 0 s, step 7");
  }
  EXPECT_FALSE(activity.state().waiting);
  activity.begin_wait(std::string(1000, 'a'));
  EXPECT_EQ(activity.state().action, std::string(95, 'a'));
}

TEST(RankActivity, waits_for_its_device_where_it_called_no_other_rank) {
  RankActivity activity;
  activity.set_phase(RankPhase::training);
  const ActivityWait wait(activity);
  EXPECT_EQ(describe(activity.state()), "in the work of its device for 0 s");
}

TEST(RankActivity, of_another_process_is_read_while_it_runs_and_after_it_was_killed) {
  const ActivityReader reader;
  EXPECT_FALSE(reader.read().has_value()) << "no rank has mapped the page";
  const pid_t rank = ::fork();
  if (rank == 0) {
    ::setenv("TRIREME_ACTIVITY_FD", std::to_string(reader.descriptor()).c_str(), 1);
    RankActivity activity = RankActivity::from_environment();
    activity.set_phase(RankPhase::training);
    activity.begin_wait("barrier", "all");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  ASSERT_TRUE(reader.read().has_value());
  EXPECT_EQ(describe(*reader.read()), "in barrier of group 'all' for 0 s");
}

TEST(RankActivity, is_read_whole_while_it_is_written) {
  const ActivityReader reader;
  RankActivity activity(::dup(reader.descriptor()));
  const std::string a(90, 'a'), b(90, 'b');
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      activity.begin_wait(a);
      activity.begin_wait(b);
    }
  });
  int torn = 0, of_a = 0, of_b = 0;
  for (int look = 0; look < 100000 || of_a == 0 || of_b == 0; ++look) {
    const std::string action = reader.read()->action;
    (action == a ? of_a : action == b || action.empty() ? of_b : torn) += 1;
  }
  stop = true;
  writer.join();
  EXPECT_EQ(torn, 0);
}

TEST(RankActivity, refuses_a_descriptor_that_is_no_page) {
  ::setenv("TRIREME_ACTIVITY_FD", "1234", 1);
  EXPECT_THROW(RankActivity::from_environment(), ConfigError);
  ::unsetenv("TRIREME_ACTIVITY_FD");
}

}  // namespace
}  // namespace trireme::rank_activity_test
