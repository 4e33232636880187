// Several launchers of one run, here all on the loopback interface; shell scripts are the ranks.
#include <array>
#include <sstream>
#include <sys/resource.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/clock.h"
#include "trireme/base/listening_socket.h"
#include "trireme/launch/launcher_link.h"
#include "trireme/launch/rank_end.h"

#include "tests/launch/shell_ranks.h"

namespace trireme {
namespace {

using testing::all_there;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LauncherProcess;
using ::testing::Not;
using testing::shell;
using testing::soon;
using testing::TemporaryFolder;
using testing::there;

class Machines : public ::testing::Test {
 protected:
  Machines() {
    std::ofstream(folder_ / "secret") << std::string(64, 'a') << "\n";
    std::filesystem::permissions(folder_ / "secret", std::filesystem::perms::owner_read);
  }

  LaunchOptions options(int node, const std::string& script) const {
    LaunchOptions options = shell(1, script);
    options.nnodes = 2;
    options.node_rank = node;
    options.master_address = "127.0.0.1";
    options.master_port = port_;
    options.secret_file = (folder_ / "secret").string();
    options.join_seconds = 30;
    return options;
  }

  TemporaryFolder folder_;
  int port_ = ListeningSocket("127.0.0.1", 0).port();
};

bool listens(int port) {
  try {
    LauncherLink::connect("127.0.0.1", port);
    return true;
  } catch (const CommError&) {
    return false;
  }
}

// Of those that were waited for.
double processor_seconds_of_children() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

TEST_F(Machines, give_their_ranks_one_meeting_point_one_name_and_one_count) {
  const std::string script =
      "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR "
      "fd=${TRIREME_MASTER_FD:+yes}; "
      "echo $MASTER_PORT $TRIREME_RUN_ID $TRIREME_SECRET > " +
      (folder_ / "shared.").string() + "$RANK";
  LauncherProcess other(options(1, script)), first(options(0, script));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_EQ(first.out(), "[rank 0] 0/2 local 0/1 at 127.0.0.1 fd=yes\n");
  EXPECT_EQ(other.out(), "[rank 1] 1/2 local 0/1 at 127.0.0.1 fd=\n");
  const std::string shared = testing::bytes_of(folder_ / "shared.0");
  EXPECT_EQ(shared, testing::bytes_of(folder_ / "shared.1"));
  EXPECT_THAT(shared, Not(HasSubstr(std::to_string(port_) + " ")));
}

TEST_F(Machines, start_again_together_and_any_number_of_times) {
  const std::string script = "printf x >> " + (folder_ / "attempts.").string() +
                             "$RANK; [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; "
                             "[ $RANK = 1 ] && kill -9 $$; sleep 20";
  LaunchOptions of_first = options(0, script);
  of_first.max_restarts = 5;  // machine 0's counts
  LauncherProcess first(of_first), other(options(1, script));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  for (const char* name : {"attempts.0", "attempts.1"}) EXPECT_EQ(testing::bytes_of(folder_ / name), "xxx");
  EXPECT_THAT(first.err(), HasSubstr("rank 1 (process "));
  EXPECT_THAT(first.err(), HasSubstr("restart 2 of 5"));
}

TEST_F(Machines, blame_one_rank_of_all_and_return_one_code) {
  const std::string script =
      "[ $RANK = 0 ] && { echo lost it >&2; exit 75; }; sleep 0.3; echo a broken file >&2; exit 65";
  LaunchOptions of_first = options(0, script);
  of_first.max_restarts = 5;
  LauncherProcess first(of_first), other(options(1, script));
  EXPECT_EQ(first.wait(), 65) << first.err();
  EXPECT_EQ(other.wait(), 65) << other.err();
  EXPECT_THAT(first.err(), HasSubstr("trireme launch: rank 1 (process "));
  EXPECT_THAT(first.err(), HasSubstr("    a broken file\n"));
  EXPECT_THAT(first.err(), Not(HasSubstr("starting all ranks again")));
  EXPECT_THAT(other.err(), HasSubstr("trireme launch: rank 1 (process "));
}

TEST_F(Machines, stop_together_whichever_is_asked) {
  for (const int asked : {0, 1}) {
    for (const char* name : {"there.0", "there.1", "saved.0", "saved.1"})
      std::filesystem::remove(folder_ / name);
    // The rank of the other machine takes longer to save than what follows a failure would give it.
    const std::string script = "trap '[ $RANK = " + std::to_string(asked) + " ] || sleep 1.6; : > " +
                               (folder_ / "saved.").string() + "$RANK; exit 75' TERM; " + there(folder_) +
                               "while :; do sleep 0.05; done";
    LaunchOptions of_first = options(0, script);
    of_first.max_restarts = 5;
    LauncherProcess first(of_first), other(options(1, script));
    ASSERT_TRUE(all_there(folder_));
    (asked == 0 ? first : other).send(SIGHUP);
    EXPECT_EQ(first.wait(), 75) << first.err();
    EXPECT_EQ(other.wait(), 75) << other.err();
    for (const char* name : {"saved.0", "saved.1"})
      EXPECT_TRUE(std::filesystem::exists(folder_ / name)) << asked;
    EXPECT_THAT(first.err(), HasSubstr("stopped by signal 1"));
  }
}

TEST_F(Machines, end_when_a_launcher_is_killed_and_name_it) {
  for (const int killed : {0, 1}) {
    for (const char* name : {"there.0", "there.1"}) std::filesystem::remove(folder_ / name);
    LaunchOptions of_first = options(0, there(folder_) + "sleep 20");
    of_first.max_restarts = 5;
    LauncherProcess first(of_first), other(options(1, there(folder_) + "sleep 20"));
    ASSERT_TRUE(all_there(folder_));
    (killed == 0 ? first : other).send(SIGKILL);
    LauncherProcess& left = killed == 0 ? other : first;
    EXPECT_EQ(left.wait(), 75) << left.err();
    EXPECT_THAT(left.err(), HasSubstr("the launcher of machine " + std::to_string(killed) + " ("));
    EXPECT_THAT(left.err(), HasSubstr("is gone"));
  }
}

// As ranks do that wait for the lost machine's in a collective.
TEST_F(Machines, end_with_the_code_of_a_lost_peer_where_their_ranks_had_to_be_killed) {
  const std::string script = "trap '' TERM; " + there(folder_) + "while :; do sleep 0.05; done";
  LaunchOptions of_first = options(0, script);
  of_first.grace_seconds = 0.3;
  LauncherProcess first(of_first), other(options(1, script));
  ASSERT_TRUE(all_there(folder_));
  other.send(SIGKILL);
  EXPECT_EQ(first.wait(), 75) << first.err();
  EXPECT_THAT(first.err(), AllOf(HasSubstr("the launcher of machine 1 ("), HasSubstr("is gone"),
                                 Not(HasSubstr("rank 0 was killed by signal 9"))));
}

TEST_F(Machines, do_not_let_in_who_does_not_know_the_secret) {
  LaunchOptions stranger = options(1, "exit 0");
  std::ofstream(folder_ / "guess") << std::string(64, 'b') << "\n";
  std::filesystem::permissions(folder_ / "guess", std::filesystem::perms::owner_read);
  stranger.secret_file = (folder_ / "guess").string();
  LauncherProcess first(options(0, "exit 0")), guesses(stranger);
  EXPECT_EQ(guesses.wait(), 78);
  EXPECT_THAT(guesses.err(), HasSubstr("has another secret than this one"));
  // One that skips the greeting, and one that says nothing, keep nobody out.
  LauncherLink silent = LauncherLink::connect("127.0.0.1", port_);
  LauncherLink rude = LauncherLink::connect("127.0.0.1", port_);
  rude.send_line(LauncherHello{1, 2, 1, "host", "nonce"}.line());
  ASSERT_TRUE(rude.wait_for_line(1000, std::chrono::seconds(5)));
  rude.send_line(std::string(64, '0'));
  EXPECT_FALSE(rude.wait_for_line(1000, std::chrono::seconds(5)));
  LauncherProcess other(options(1, "exit 0"));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_THAT(first.err(), HasSubstr("does not know this run's secret"));
}

TEST_F(Machines, let_a_launcher_in_though_strangers_took_all_files_that_may_be_open) {
  const double before = processor_seconds_of_children();
  LauncherProcess first(options(0, "exit 0"), [](const auto& options, auto& out, auto& err) {
    const rlimit few{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &few);
    return launch(options, out, err);
  });
  ASSERT_TRUE(soon([&] { return listens(port_); }));
  std::vector<LauncherLink> strangers;
  for (int i = 0; i < 64; ++i) strangers.push_back(LauncherLink::connect("127.0.0.1", port_));
  LauncherProcess other(options(1, "exit 0"));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_LT(processor_seconds_of_children() - before, 5) << "it asks again and again for a connection";
}

TEST_F(Machines, that_were_started_with_other_numbers_are_refused_on_both_sides) {
  LaunchOptions wrong = options(1, "exit 0");
  wrong.nproc = 3;
  LauncherProcess first(options(0, "exit 0")), other(wrong);
  EXPECT_EQ(first.wait(), 78);
  EXPECT_EQ(other.wait(), 78);
  for (const LauncherProcess* one : {&first, &other})
    EXPECT_THAT(one->err(), HasSubstr("--nproc_per_node 3"));
}

TEST_F(Machines, let_in_a_launcher_that_was_started_again_while_others_were_awaited) {
  const auto of_three = [&](int node) {
    LaunchOptions one = options(node, "exit 0");
    one.nnodes = 3;
    return one;
  };
  LauncherProcess first(of_three(0));
  ASSERT_TRUE(soon([&] { return listens(port_); }));
  {
    LauncherLink joins = LauncherLink::connect("127.0.0.1", port_);
    const LauncherHello hello{1, 3, 1, "host", "nonce"};
    joins.send_line(hello.line());
    std::istringstream answer(joins.wait_for_line(1000, std::chrono::seconds(5)).value_or(""));
    std::string nonce;
    answer >> nonce;
    joins.send_line(launcher_proof(std::string(64, 'a'), kRoleOfOtherMachine, hello, nonce));
  }  // and goes
  LauncherProcess again(of_three(1)), last(of_three(2));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(last.wait(), 0) << last.err();
  EXPECT_THAT(first.err(), HasSubstr("has gone again"));
}

TEST_F(Machines, that_do_not_come_in_time_are_named) {
  LaunchOptions alone = options(0, "exit 0");
  alone.join_seconds = 1;
  LauncherProcess first(alone);
  EXPECT_EQ(first.wait(), 75);
  EXPECT_THAT(first.err(), HasSubstr("machines 1 did not come"));
  alone = options(1, "exit 0");
  alone.join_seconds = 1;
  LauncherProcess other(alone);
  EXPECT_EQ(other.wait(), 75);
  EXPECT_THAT(other.err(), HasSubstr("cannot connect to the launcher of machine 0"));
}

TEST_F(Machines, ask_for_a_name_again_that_nobody_knows_yet) {
  for (const auto& [node, waits] :
       {std::pair{0, "waiting for the name of machine 0"}, {1, "waiting for machine 0"}}) {
    LaunchOptions lost = options(node, "exit 0");
    lost.master_address = "machine-0.invalid";
    lost.join_seconds = 1;
    const auto begin = std::chrono::steady_clock::now();
    LauncherProcess launcher(lost);
    EXPECT_EQ(launcher.wait(), 78) << launcher.err();
    EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    EXPECT_THAT(launcher.err(), HasSubstr(cat(waits, ": cannot find the machine machine-0.invalid")));
  }
}

TEST_F(Machines, that_wait_for_others_end_at_once_when_asked_to_stop) {
  for (const int node : {0, 1}) {
    LauncherProcess alone(options(node, "exit 0"));
    ASSERT_TRUE(soon([&] {
      std::ifstream in("/proc/" + std::to_string(alone.pid()) + "/status");
      std::string text(std::istreambuf_iterator<char>(in), {});
      return text.find("SigBlk:\t0000000000000000") == std::string::npos;  // it has taken the signals over
    }));
    alone.send(SIGUSR1);
    EXPECT_EQ(alone.wait(), 75) << alone.err();
    EXPECT_THAT(alone.err(), HasSubstr("stopped by signal 10"));
  }
}

TEST_F(Machines, end_at_a_second_request_though_the_launcher_of_another_is_stopped) {
  for (const int stopped : {0, 1}) {
    for (const char* name : {"there.0", "there.1"}) std::filesystem::remove(folder_ / name);
    LauncherProcess first(options(0, there(folder_) + "sleep 20")),
        other(options(1, there(folder_) + "sleep 20"));
    ASSERT_TRUE(all_there(folder_));
    LauncherProcess& left = stopped == 0 ? other : first;
    (stopped == 0 ? first : other).send(SIGSTOP);
    left.send(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // the rule's own two seconds
    left.send(SIGINT);
    EXPECT_EQ(left.wait(), 75) << left.err();
    EXPECT_THAT(left.err(), HasSubstr("the launcher of machine " + std::to_string(stopped) + " ("));
  }
}

TEST(LauncherLink, says_that_it_lives_and_is_lost_when_the_other_side_does_not) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const double begin = now_seconds();
  LauncherLink link(ends[0]), other(ends[1]);
  link.keep_alive(begin + 4);
  EXPECT_FALSE(other.next_message());
  link.keep_alive(begin + 6);
  EXPECT_EQ(other.next_message(), Json::object());
  other.keep_alive(begin + 29);
  EXPECT_EQ(other.lost(), "");
  other.keep_alive(now_seconds() + 31);
  EXPECT_THAT(other.lost(), HasSubstr("no sign of life for 30 s"));
}

TEST(RankEndJson, says_on_the_other_side_what_was_said_on_this_one) {
  RankEnd end;
  end.rank = 3;
  end.host = "node7";
  end.pid = 42;
  end.signal = 9;
  end.asked = end.killed = true;
  end.waited_seconds = 1.5;
  end.look = {
      .stopped = true, .known = true, .waiting = true, .still_seconds = 2.5, .doing = "in all_to_all"};
  end.last_lines = {"one", "two"};
  EXPECT_EQ(to_json(parse_rank_end(to_json(end), "test")), to_json(end));
}

}  // namespace
}  // namespace trireme
