// Which ranks exchange through memory, and what is said where they cannot.
#include "trireme/comm/memory_reach.h"

#include <array>
#include <functional>
#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/world.h"

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace trireme::memory_reach_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Two ranks that hear of each other.
std::string why_not(const Json& card_0, const Json& card_1) {
  MemoryReach rank_0(0, {card_0, card_1}), rank_1(1, {card_0, card_1});
  const std::vector<Json> found = {rank_0.found(), rank_1.found()};
  rank_0.hear(found);
  rank_1.hear(found);
  EXPECT_EQ(rank_0.why_not({0, 1}), rank_1.why_not({0, 1})) << "all ranks choose alike";
  return rank_0.why_not({0, 1});
}

TEST(MemoryReach, is_of_ranks_that_read_each_others_nonce) {
  const MemoryProof a, b;
  EXPECT_EQ(why_not(a.card(), b.card()), "");
  Json wrong = b.card();
  wrong["nonce"] = 1;
  EXPECT_THAT(why_not(a.card(), wrong), HasSubstr("rank 0 cannot read from rank 1: process "));
}

TEST(MemoryReach, is_not_of_other_machines_nor_of_ranks_that_take_no_part) {
  const MemoryProof a, b;
  Json far = b.card();
  far["machine"] = "another";
  EXPECT_THAT(why_not(a.card(), far), HasSubstr("different machines"));
  far["machine"] = "";
  EXPECT_THAT(why_not(a.card(), far), HasSubstr("different machines"));
  EXPECT_THAT(why_not(a.card(), Json()), HasSubstr("rank 1 takes no part"));
}

TEST(MemoryReach, of_a_rank_that_takes_no_part_is_nobody_and_it_reads_nobody) {
  const MemoryProof a, b;
  EXPECT_THAT(why_not(Json(), b.card()), HasSubstr("rank 0 takes no part"));
  EXPECT_EQ(MemoryReach(0, {Json(), b.card()}).found(), MemoryReach(0, {Json(), Json()}).found());
}

TEST(MemoryReach, is_not_of_a_process_that_ended_or_an_address_that_is_not_there) {
  const MemoryProof a;
  Json card = a.card();
  card["address"] = 8;
  EXPECT_THAT(why_not(a.card(), card), HasSubstr("cannot be read: Bad address"));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  card["process"] = child;
  EXPECT_THAT(why_not(a.card(), card), HasSubstr("cannot be watched"));
}

TEST(PeerProcess, is_seen_to_end) {
  std::array<int, 2> hold{};
  ASSERT_EQ(::pipe(hold.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(hold[1]);
    ::_exit(::read(hold[0], &byte, 1) == 0 ? 0 : 1);
  }
  Json card = MemoryProof().card();
  card["process"] = child;
  const PeerProcess peer(card);
  EXPECT_FALSE(peer.has_ended());
  ::close(hold[1]);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(peer.has_ended());
  ::close(hold[0]);
}

TEST(PeerProcess, has_not_ended_because_a_signal_comes_while_it_is_asked) {
  const PeerProcess self(MemoryProof().card());
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &ignore, &before), 0);
  const itimerval often{.it_interval = {0, 50}, .it_value = {0, 50}}, never = {};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  int ended = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end) ended += self.has_ended() ? 1 : 0;
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(ended, 0);
}

// Runs `body` in a new namespace of processes, whose /proc is still that of this one; its exit code.
int in_namespace_of_processes(const std::function<int()>& body) {
  constexpr int kNotPermitted = 77;
  const auto code_of = [](pid_t child) {
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  };
  const pid_t outer = ::fork();
  if (outer != 0) return code_of(outer);
  if (::unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0) ::_exit(kNotPermitted);
  const pid_t inner = ::fork();
  if (inner == 0) ::_exit(body());
  ::_exit(code_of(inner));
}

TEST(MemoryReach, is_unknown_where_proc_numbers_other_processes) {
  const int code = in_namespace_of_processes(
      [] { return MemoryProof().card().at("machine").get<std::string>().empty() ? 0 : 1; });
  if (code == 77) GTEST_SKIP() << "this system lets users make no namespaces";
  EXPECT_EQ(code, 0);
}

// How each rank says that it exchanges, or its error, where each is told another backend.
std::vector<std::string> joined_by(std::vector<ExchangeBackend> backends, bool say_local_size = true) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int ranks = static_cast<int>(backends.size());
  std::vector<std::string> said(backends.size());
  testing::on_threads(ranks, [&](int rank) {
    try {
      const RankIdentity identity{.rank = rank,
                                  .size = ranks,
                                  .local_rank = say_local_size ? rank : 0,
                                  .local_size = say_local_size ? ranks : 1};
      const auto world =
          join_world(identity, store, {.timeout = std::chrono::seconds(100), .backend = backends[rank]});
      const auto group = world->make_group("all", {{0, 1}});
      at::Tensor sum = at::ones({1});
      all_reduce_sum(*group, sum);
      said[rank] =
          cat(world->describe_exchanges(), " ", group->backend().getBackendName(), " ", sum.item<float>());
    } catch (const ConfigError& error) {
      said[rank] = error.what();
    }
  });
  return said;
}

TEST(ExchangeBackend, is_memory_by_itself_and_Gloo_where_a_rank_asks_for_it) {
  using enum ExchangeBackend;
  EXPECT_THAT(joined_by({automatic, automatic}), Each("memory memory 2"));
  EXPECT_THAT(joined_by({gloo, gloo}), Each("Gloo (--ddp_backend gloo) gloo 2"));
  const auto mixed = joined_by({automatic, gloo});
  EXPECT_EQ(mixed[0], "Gloo (rank 1 takes no part in exchanges through memory) gloo 2");
  EXPECT_EQ(mixed[1], "Gloo (--ddp_backend gloo) gloo 2");
  EXPECT_THAT(joined_by({automatic, automatic}, false), Each("memory memory 2"))
      << "as found out, whatever those who started the ranks told";
}

TEST(ExchangeBackend, that_cannot_serve_is_a_ConfigError) {
  const RankIdentity identity{.rank = 0, .size = 1};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(testing::message_of<ConfigError>(
                  [&] { join_world(identity, store, {.backend = ExchangeBackend::nccl}); }),
              HasSubstr("--ddp_backend nccl with --device cpu"));
}

}  // namespace
}  // namespace trireme::memory_reach_test
