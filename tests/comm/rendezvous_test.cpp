// How ranks meet: at rank 0's store, at a store that torchrun's agent holds, or not at all.
#include <exception>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/error.h"
#include "trireme/base/listening_socket.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/world.h"

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Ranks as threads that join as processes would; returns the sum of rank + 1 that each got.
std::vector<int64_t> join_and_sum(std::vector<RankIdentity> identities) {
  std::vector<int64_t> sums(identities.size(), 0);
  testing::on_threads(static_cast<int>(identities.size()), [&](int rank) {
    const auto world = join_world(identities[rank], {.timeout = milliseconds(20000)});
    const auto group = world->make_group("all", {{0, 1}});
    at::Tensor sum = at::full({1}, rank + 1, at::kLong);
    all_reduce_sum(*group, sum);
    sums[rank] = sum.item<int64_t>();
    barrier(*group);  // rank 0 holds the store: it must not go while others use it
  });
  return sums;
}

std::vector<RankIdentity> two_identities(int port) {
  std::vector<RankIdentity> identities(2);
  for (int rank = 0; rank < 2; ++rank) {
    identities[rank] = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .master_port = port};
  }
  return identities;
}

TEST(Rendezvous, at_the_store_that_rank_0_opens) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identities = two_identities(socket.port());
  identities[0].master_listen_fd = ::dup(socket.descriptor());  // the store takes it over and closes it
  EXPECT_THAT(join_and_sum(identities), ::testing::ElementsAre(3, 3));
}

c10::intrusive_ptr<c10d::TCPStore> store_of_agent() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(Rendezvous, at_an_agent_s_store_also_in_a_second_attempt) {
  const auto agent = store_of_agent();
  auto identities = two_identities(agent->getPort());
  for (const char* attempt : {"0", "1"}) {
    for (RankIdentity& identity : identities) {
      identity.agent_has_store = true;
      identity.attempt = attempt;
    }
    EXPECT_THAT(join_and_sum(identities), ::testing::ElementsAre(3, 3));
  }
}

TEST(Rendezvous, at_an_agent_s_store_that_tells_no_port_is_a_ConfigError) {
  const auto agent = store_of_agent();
  RankIdentity identity = two_identities(agent->getPort())[1];
  identity.agent_has_store = true;
  for (const char* told : {"no number", "70000"}) {
    static_cast<c10d::Store&>(*agent).set("trireme/0/port", std::string(told));
    EXPECT_THAT([&] { join_world(identity, {.timeout = milliseconds(20000)}); },
                ::testing::ThrowsMessage<ConfigError>(HasSubstr(told)));
  }
}

// A store that answers late, so that its rank is the last to connect.
class LateStore : public c10d::PrefixStore {
 public:
  explicit LateStore(c10::intrusive_ptr<c10d::Store> store) : PrefixStore("all", std::move(store)) {}
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    std::this_thread::sleep_for(milliseconds(30));
    PrefixStore::wait(keys, timeout);
  }
};

// Errors of three ranks that meet, the last one late, and leave at once.
std::vector<std::string> meet_and_leave() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(3);
  testing::on_threads(3, [&](int rank) {
    const RankIdentity identity{.rank = rank, .size = 3, .local_rank = rank, .local_size = 3};
    c10::intrusive_ptr<c10d::Store> mine = c10::make_intrusive<c10d::PrefixStore>("all", store);
    if (rank == 2) mine = c10::make_intrusive<LateStore>(store);
    try {
      join_world(identity, mine, {.timeout = milliseconds(20000)})->make_group("all", {{0, 1, 2}});
    } catch (const std::exception& error) {
      errors[rank] = error.what();
    }
  });
  return errors;
}

TEST(Rendezvous, a_rank_that_leaves_its_group_at_once_does_not_disturb_a_peer_that_still_connects) {
  for (int round = 0; round < 12; ++round)  // a third of them fails where ranks do not wait for each other
    ASSERT_THAT(meet_and_leave(), ::testing::Each(""));
}

TEST(Rendezvous, ranks_learn_how_many_neighbours_lie_on_one_machine_everywhere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> common(10);
  testing::on_threads(10, [&](int rank) {
    // Six ranks on the first machine, four on the second.
    const RankIdentity identity{
        .rank = rank, .size = 10, .local_rank = rank % 6, .local_size = rank < 6 ? 6 : 4};
    common[rank] = join_world(identity, store, {.timeout = milliseconds(20000)})->common_machine_ranks();
  });
  EXPECT_THAT(common, ::testing::Each(2));
}

TEST(Rendezvous, without_the_others_is_a_CommError_after_the_timeout) {
  const ListeningSocket socket("127.0.0.1", 0);
  RankIdentity identity = two_identities(socket.port())[0];
  identity.master_listen_fd = ::dup(socket.descriptor());
  EXPECT_THAT(testing::message_of<CommError>([&] { join_world(identity, {.timeout = milliseconds(500)}); }),
              ::testing::AllOf(HasSubstr("meeting the other ranks at 127.0.0.1:"), HasSubstr("on rank 0"),
                               HasSubstr("timeout 0.5 s")));
}

}  // namespace
}  // namespace trireme
