// DeepSpeed's list of hosts and its filters. Cases of the filters are those of its documentation and of
// tests/unit/launcher/test_run.py.
#include "trireme/launch/host_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

std::string text_of(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts)
    text += cat(text.empty() ? "" : " ", host.host, ":", slot_list(host.slots));
  return text;
}

std::string refusal(const std::string& text) {
  return message_of<ConfigError>([&] { parse_hostfile(text, "hosts"); });
}

TEST(Hostfile, names_hosts_in_order_beside_comments_and_empty_lines) {
  EXPECT_EQ(text_of(parse_hostfile("# two nodes\n\nworker-2 slots=2\n  worker-1\tslots=3  \n", "hosts")),
            "worker-2:0,1 worker-1:0,1,2");
}

TEST(Hostfile, that_is_wrong_names_the_line) {
  EXPECT_THAT(refusal("a slots=2\nb slots=x\n"), HasSubstr("hosts, line 2 is 'b slots=x'"));
  for (const char* line : {"a", "a slots=0", "a slots=", "a slots=-1", "-oProxyCommand=x slots=2", "a 2"})
    EXPECT_THAT(refusal(line), HasSubstr("line 1")) << line;
  EXPECT_THAT(refusal("a slots=2\na slots=2\n"), HasSubstr("line 2 names host 'a' a second time"));
  EXPECT_THAT(refusal("# nothing\n"), HasSubstr("hosts names no host"));
}

const std::vector<HostSlots> kTwo{{"worker-0", {0, 1}}, {"worker-1", {0, 1, 2, 3}}};

std::string included(const std::string& filter) {
  return text_of(filter_hosts(kTwo, filter, ""));
}
std::string excluded(const std::string& filter) {
  return text_of(filter_hosts(kTwo, "", filter));
}

TEST(HostFilter, includes_hosts_and_slots_in_the_order_of_hosts) {
  EXPECT_EQ(included(""), "worker-0:0,1 worker-1:0,1,2,3");
  EXPECT_EQ(included("worker-1"), "worker-1:0,1,2,3");
  EXPECT_EQ(included("worker-1:0,2@worker-0"), "worker-0:0,1 worker-1:0,2");
  EXPECT_EQ(included("worker-1:3,1,3"), "worker-1:3,1");
  EXPECT_EQ(included("worker-1@worker-1:2"), "worker-1:2");
}

TEST(HostFilter, excludes_hosts_and_slots) {
  EXPECT_EQ(excluded("worker-1:0"), "worker-0:0,1 worker-1:1,2,3");
  EXPECT_EQ(excluded("worker-0"), "worker-1:0,1,2,3");
  EXPECT_EQ(excluded("worker-0:0,1@worker-1:3"), "worker-1:0,1,2");
}

TEST(HostFilter, of_hosts_with_users_takes_their_whole_names) {
  const std::vector<HostSlots> hosts{{"me@a", {0, 1}}, {"b", {0}}};
  EXPECT_EQ(text_of(filter_hosts(hosts, "me@a:1@b", "")), "me@a:1 b:0");
  EXPECT_THAT(message_of<ConfigError>([&] { filter_hosts(hosts, "b@me", ""); }), HasSubstr("ends within"));
}

TEST(HostFilter, that_is_wrong_says_what_there_is) {
  const auto refusal = [](const std::string& include, const std::string& exclude) {
    return message_of<ConfigError>([&] { filter_hosts(kTwo, include, exclude); });
  };
  EXPECT_THAT(refusal("worker-0", "worker-1"), HasSubstr("exclude each other"));
  EXPECT_THAT(refusal("worker-3", ""), AllOf(HasSubstr("'worker-3'"), HasSubstr("worker-0, worker-1")));
  EXPECT_THAT(refusal("worker-0:2", ""), HasSubstr("'worker-0' has no slot '2'; it has 0,1"));
  EXPECT_THAT(refusal("worker-0:", ""), HasSubstr("no slot ''"));
  EXPECT_THAT(refusal("", "worker-0:x"), HasSubstr("no slot 'x'"));
  EXPECT_THAT(refusal("", "worker-0@worker-1"), HasSubstr("leaves no slot"));
}

class ChosenHosts : public ::testing::Test {
 protected:
  HostOptions options() const {
    HostOptions options;
    options.hostfile = folder_.write("hosts", "a slots=8\nb slots=8\nc slots=8\nd slots=8\n").string();
    return options;
  }
  static std::string refusal(const HostOptions& options, int machine_gpus = 0) {
    return message_of<ConfigError>([&] { choose_hosts(options, machine_gpus); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ChosenHosts, are_the_first_so_many_with_so_many_slots) {
  HostOptions asked = options();
  asked.num_nodes = 2;
  asked.num_gpus = 2;
  EXPECT_EQ(text_of(choose_hosts(asked, 0)), "a:0,1 b:0,1");
  asked.num_nodes = 5;
  EXPECT_THAT(refusal(asked), HasSubstr("has 4 hosts: a, b, c, d"));
  asked.num_nodes.reset();
  asked.exclude = "a";
  EXPECT_THAT(refusal(asked), HasSubstr("cannot stand beside --include or --exclude"));
}

TEST_F(ChosenHosts, without_a_list_are_this_machine) {
  HostOptions asked;
  EXPECT_FALSE(chooses_hosts(asked));
  asked.num_gpus = 2;
  EXPECT_TRUE(chooses_hosts(asked));
  EXPECT_EQ(text_of(choose_hosts(asked, 4)), "localhost:0,1");
  EXPECT_THAT(refusal(asked, 0), HasSubstr("--nproc_per_node N"));
  asked.num_nodes = 2;
  EXPECT_THAT(refusal(asked, 4), HasSubstr("--num_nodes 2 needs --hostfile"));
  asked = {};
  asked.include = "localhost:1,3";
  EXPECT_EQ(text_of(choose_hosts(asked, 4)), "localhost:1,3");
  asked.hostfile = (folder_ / "nothing").string();
  EXPECT_THAT(message_of<DataError>([&] { choose_hosts(asked, 0); }), HasSubstr("nothing"));
}

TEST_F(ChosenHosts, that_have_fewer_gpus_than_asked_say_how_many_machines_that_would_be) {
  HostOptions asked;
  asked.num_gpus = 32;
  EXPECT_THAT(refusal(asked, 8), AllOf(HasSubstr("this one has 8"), HasSubstr("32 GPUs are 4 machines of 8"),
                                       HasSubstr("HOST slots=8"), HasSubstr("--hostfile")));
  asked.hostfile = options().hostfile;
  EXPECT_THAT(refusal(asked), AllOf(HasSubstr("host 'a' has slots=8"), HasSubstr("4 machines of 8"),
                                    HasSubstr("leave --num_gpus out")));
}

}  // namespace
}  // namespace trireme
