// Launchers on several hosts by one command. `ssh` is a script here, whose host's name says what happens; the
// launchers that it starts are the program's, and ranks are shell scripts. over_ssh_test.py has real ones.
#include "trireme/launch/several_hosts.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/launch/host_launcher.h"
#include "trireme/launch/launch_order.h"

#include "tests/launch/shell_ranks.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using testing::all_there;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LauncherProcess;
using testing::message_of;
using ::testing::Not;
using testing::there;

// host names: "good-1" runs the program; others fail as ssh does.
constexpr const char* kSsh = R"sh(#!/bin/sh
for word; do
  case $previous in -o|-p) previous=; continue ;; esac
  case $word in -o|-p) previous=$word; continue ;; -*) continue ;; esac
  if [ -z "$host" ]; then host=$word; else command=$word; fi
done
echo "$host $$" >> $FOLDER/started
echo "$command" >> $FOLDER/commands
echo "Welcome to $host" >&2
[ -e $FOLDER/gone ] && [ $host = good-2 ] && host=nossh
case $host in
  good-*) [ -n "$CUT" ] && { exec 3<&0; $TRIREME_BINARY launch --by_launcher <&3 & echo $! >> $FOLDER/launchers; wait $!; code=$?; [ $code = 137 ] && code=255; exit $code; }
          echo $$ >> $FOLDER/launchers; exec $TRIREME_BINARY launch --by_launcher ;;
  nowhere) echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2; exit 255 ;;
  stranger) echo "Host key verification failed." >&2; exit 255 ;;
  nokey) echo "me@nokey: Permission denied (publickey)." >&2; exit 255 ;;
  nossh) echo "ssh: connect to host nossh port 22: Connection refused" >&2; exit 255 ;;
  off) echo "ssh: connect to host off port 22: Connection timed out" >&2; exit 255 ;;
  empty) echo "sh: 1: exec: trireme: not found" >&2; exit 127 ;;
  elsewhere) echo "sh: 1: cd: can't cd to /x" >&2; exit 120 ;;
esac
)sh";

class Hosts : public ::testing::Test {
 protected:
  Hosts() {
    std::filesystem::permissions(folder_.write("ssh", kSsh), std::filesystem::perms::owner_all);
    set("PATH", folder_.path().string() + ":" + std::getenv("PATH"));
    set("FOLDER", folder_.path().string());
    const char* program = std::getenv("TRIREME_BINARY");
    EXPECT_TRUE(program != nullptr && *program != '\0') << "run this through ctest";
  }
  ~Hosts() override {
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
    for (const char* name : {"FOLDER", "CUT", "NCCL_DEBUG"}) ::unsetenv(name);
  }
  void set(const char* name, const std::string& value) {
    if (const char* now = std::getenv(name)) before_.emplace(name, now);
    ::setenv(name, value.c_str(), 1);
  }

  LaunchOptions options(const std::string& script) const {
    LaunchOptions options = testing::shell(1, script);
    options.master_address = "127.0.0.1";
    options.join_seconds = 60;
    return options;
  }
  static auto on(const std::vector<HostSlots>& hosts) {
    return [hosts](const LaunchOptions& options, std::ostream& out, std::ostream& err) {
      return launch_on_hosts(options, hosts, out, err);
    };
  }
  std::vector<pid_t> launchers() const {
    std::vector<pid_t> all;
    std::ifstream in(folder_ / "launchers");
    for (pid_t one = 0; in >> one;) all.push_back(one);
    return all;
  }

  testing::TemporaryFolder folder_;
  std::map<std::string, std::string> before_;
};

const std::vector<HostSlots> kTwoHosts{{"good-1", {0}}, {"good-2", {0}}};

TEST_F(Hosts, run_ranks_of_one_run_with_slots_environment_and_words_as_they_were_given) {
  set("NCCL_DEBUG", "it's \"quoted\" $HOME");
  const std::string script =
      "echo \"$RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE on $CUDA_VISIBLE_DEVICES $NCCL_DEBUG\"; "
      "echo $MASTER_PORT $TRIREME_RUN_ID $TRIREME_SECRET > " +
      (folder_ / "shared.").string() + "$RANK; echo a  \\'word\\' >&2";
  LauncherProcess first(options(script), on({{"good-1", {2, 0}}, {"good-2", {1}}}));
  EXPECT_EQ(first.wait(), 0) << first.err();
  const std::string tail = " it's \"quoted\" $HOME\n";
  for (const char* line :
       {"[rank 0] 0/3 local 0/2 on 2,0", "[rank 1] 1/3 local 1/2 on 2,0", "[rank 2] 2/3 local 0/1 on 1"})
    EXPECT_THAT(first.out(), HasSubstr(line + tail));
  EXPECT_THAT(first.err(), AllOf(HasSubstr("[rank 2] a 'word'\n"), Not(HasSubstr("Welcome")),
                                 Not(HasSubstr("trireme launch:"))));
  const std::string shared = testing::bytes_of(folder_ / "shared.0");
  EXPECT_EQ(shared, testing::bytes_of(folder_ / "shared.2"));
  const std::string secret = shared.substr(shared.rfind(' ') + 1, 64);
  EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_THAT(testing::bytes_of(folder_ / "commands"),
              AllOf(HasSubstr("cd '" + std::filesystem::current_path().string() + "' || exit 120; exec '"),
                    HasSubstr(" launch --by_launcher\n"), Not(HasSubstr(secret)), Not(HasSubstr("RANK"))));
}

TEST_F(Hosts, that_cannot_take_part_are_all_named_before_any_rank_starts) {
  std::vector<HostSlots> hosts{{"good-1", {0}}};
  for (const char* bad : {"nowhere", "stranger", "nokey", "nossh", "off", "empty", "elsewhere"})
    hosts.push_back({bad, {0}});
  LauncherProcess first(options(there(folder_)), on(hosts));
  EXPECT_EQ(first.wait(), 78);
  EXPECT_THAT(
      first.err(),
      AllOf(HasSubstr("no host is named nowhere: mend its line"), HasSubstr("'ssh stranger' once"),
            HasSubstr("nokey refused this user's ssh keys: ssh-copy-id nokey"),
            HasSubstr("nokey said: me@nokey: Permission denied"), HasSubstr("no ssh server answers on nossh"),
            HasSubstr("--ssh_port"), HasSubstr("no ssh connection to off"), HasSubstr("empty cannot run /")));
  EXPECT_THAT(first.err(), AllOf(HasSubstr("at the same path"), HasSubstr("elsewhere has no folder /"),
                                 Not(HasSubstr("good-1"))));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "there.0"));
  for (const pid_t launcher : launchers()) EXPECT_TRUE(testing::ends_soon(launcher));
}

TEST_F(Hosts, that_may_come_back_are_a_communication_error) {
  LauncherProcess first(options(there(folder_)), on({{"off", {0}}, {"nossh", {0}}}));
  EXPECT_EQ(first.wait(), 75);
}

TEST_F(Hosts, start_again_together) {
  LaunchOptions again = options("printf x >> " + (folder_ / "attempts.").string() +
                                "$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                                "[ $RANK = 1 ] && kill -9 $$; sleep 20");
  again.max_restarts = 3;
  LauncherProcess first(again, on(kTwoHosts));
  EXPECT_EQ(first.wait(), 0) << first.err();
  for (const char* name : {"attempts.0", "attempts.1"}) EXPECT_EQ(testing::bytes_of(folder_ / name), "xx");
  EXPECT_THAT(first.err(), AllOf(HasSubstr("rank 1 (process "), HasSubstr("restart 1 of 3")));
}

TEST_F(Hosts, return_the_code_of_the_rank_to_blame) {
  LauncherProcess first(options("[ $RANK = 0 ] && sleep 20; echo a broken file >&2; exit 65"), on(kTwoHosts));
  EXPECT_EQ(first.wait(), 65) << first.err();
  EXPECT_THAT(first.err(), AllOf(HasSubstr("    a broken file\n"), Not(HasSubstr("the launcher on"))));
}

TEST_F(Hosts, all_save_when_the_one_command_is_asked_to_stop) {
  LauncherProcess first(options("trap ': > " + (folder_ / "saved.").string() + "$RANK; exit 75' TERM; " +
                                there(folder_) + "while :; do sleep 0.05; done"),
                        on(kTwoHosts));
  ASSERT_TRUE(all_there(folder_)) << first.err();
  first.send(SIGUSR1);
  EXPECT_EQ(first.wait(), 75) << first.err();
  for (const char* name : {"saved.0", "saved.1"}) EXPECT_TRUE(std::filesystem::exists(folder_ / name));
  EXPECT_THAT(first.err(), HasSubstr("stopped by signal 10"));
}

TEST_F(Hosts, keep_no_process_when_the_one_command_is_killed) {
  const std::string pids = "echo $$ > " + (folder_ / "pid.").string() + "$RANK; " + there(folder_);
  LauncherProcess first(options(pids + "sleep 100"), on(kTwoHosts));
  ASSERT_TRUE(all_there(folder_)) << first.err();
  first.send(SIGKILL);
  for (const pid_t launcher : launchers()) EXPECT_TRUE(testing::ends_soon(launcher));
  for (const char* name : {"pid.0", "pid.1"})
    EXPECT_TRUE(testing::ends_soon(testing::read_pid(folder_ / name)));
}

TEST_F(Hosts, whose_connection_is_lost_stop_the_run_and_are_named) {
  set("CUT", "yes");  // ssh ends with 255 when its launcher does
  LauncherProcess first(options(there(folder_) + "sleep 100"), on(kTwoHosts));
  ASSERT_TRUE(all_there(folder_)) << first.err();
  ::kill(launchers().back(), SIGKILL);
  EXPECT_EQ(first.wait(), 75) << first.err();
  EXPECT_THAT(first.err(),
              AllOf(HasSubstr("the ssh connection to good-"), HasSubstr("--resume_from_checkpoint")));
}

TEST_F(Hosts, that_are_gone_for_good_are_left_out_where_that_is_asked) {
  set("CUT", "yes");
  LaunchOptions elastic = options(
      "echo $RANK/$WORLD_SIZE attempt $TORCHELASTIC_RESTART_COUNT first $TRIREME_FIRST_RANKS; "
      "echo $TRIREME_RUN_ID >> " +
      (folder_ / "names").string() +
      "; [ $WORLD_SIZE = 1 ] && exit 0; "
      "[ $RANK = 1 ] && { : > $FOLDER/gone; kill -9 $PPID; }; sleep 20");
  elastic.elastic = true;
  elastic.max_restarts = 1;
  LauncherProcess first(elastic, on(kTwoHosts));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_THAT(first.out(), HasSubstr("[rank 0] 0/1 attempt 1 first 2\n"));
  EXPECT_THAT(first.err(), AllOf(HasSubstr("--elastic leaves out good-2: no ssh server answers"),
                                 HasSubstr("(restart 1 of 1) on 1 of 2 hosts, with 1 ranks, before 2")));
  std::istringstream names(testing::bytes_of(folder_ / "names"));
  std::set<std::string> different{std::istream_iterator<std::string>(names), {}};
  EXPECT_EQ(different.size(), 1U) << "one launch has one name";
  std::istringstream started(testing::bytes_of(folder_ / "started"));
  const std::vector<std::string> words{std::istream_iterator<std::string>(started), {}};
  EXPECT_EQ(std::count(words.begin(), words.end(), "good-1"), 2) << "it is reached once for each attempt";
}

TEST(HostNames, of_this_machine_need_no_ssh) {
  EXPECT_TRUE(is_this_machine("localhost"));
  EXPECT_TRUE(is_this_machine("127.0.0.1"));
  EXPECT_FALSE(is_this_machine("me@localhost"));
  EXPECT_FALSE(is_this_machine("192.0.2.1"));  // of no machine: RFC 5737
  EXPECT_THAT(message_of<ConfigError>([] {
                launch_on_hosts(testing::shell(1, ""), {{"localhost", {0}}, {"192.0.2.1", {0}}}, std::cout,
                                std::cerr);
              }),
              HasSubstr("--master_addr"));
}

TEST(SshWords, ask_nothing_and_quote_for_the_remote_shell) {
  HostOptions options;
  options.ssh_port = 2222;
  options.launcher_args = "-i key -o ConnectTimeout=5";
  const auto words = ssh_words("me@host", options, "/opt/it's/trireme", "/runs/a b");
  EXPECT_THAT(
      words, ::testing::ElementsAre("ssh", "-i", "key", "-o", "ConnectTimeout=5", "-o", "BatchMode=yes", "-o",
                                    "ConnectTimeout=30", "-o", "ServerAliveInterval=10", "-o",
                                    "ServerAliveCountMax=3", "-T", "-p", "2222", "me@host",
                                    "cd '/runs/a b' || exit 120; exec '/opt/it'\\''s/trireme' launch "
                                    "--by_launcher"));
}

TEST(LaunchOrder, says_on_the_host_what_was_said_here) {
  LaunchOrder order;
  order.options.nproc_of_nodes = {2, 1};
  order.options.node_rank = 1;
  order.options.master_address = "node0";
  order.options.master_port = 29400;
  order.options.max_restarts = 3;
  order.options.stop_seconds = 7.5;
  order.options.log_dir = "logs";
  order.options.command = {"train", "--model", "a b\n\"c\""};
  order.options.visible_devices = "1,0";
  order.options.rank_stdout = RankStdout::of_rank_0;
  order.secret = std::string(64, 'a');
  order.environment = {{"NCCL_DEBUG", "INFO"}};
  const LaunchOrder there = parse_launch_order(Json::parse(to_json(order).dump()));
  EXPECT_EQ(to_json(there), to_json(order));
  EXPECT_EQ(there.options.nproc, 1);
  EXPECT_EQ(there.options.nnodes, 2);
  EXPECT_EQ(there.options.world_size(), 3);
  EXPECT_EQ(there.options.ranks_before(1), 2);
  Json broken = to_json(order);
  broken["node_rank"] = 2;
  EXPECT_THAT(message_of<DataError>([&] { parse_launch_order(broken); }), HasSubstr("node_rank"));
  broken = to_json(order);
  broken["command"] = {1};
  EXPECT_THROW(parse_launch_order(broken), DataError);
}

}  // namespace
}  // namespace trireme
