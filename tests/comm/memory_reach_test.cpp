// Which ranks exchange through memory, and what is said where they cannot.
#include "trireme/comm/memory_reach.h"

#include <cstdlib>
#include <sys/wait.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/world.h"

namespace trireme::memory_reach_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

// How each rank says that it exchanges, or its error, where each is told another backend.
std::vector<std::string> joined_by(std::vector<ExchangeBackend> backends) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int ranks = static_cast<int>(backends.size());
  std::vector<std::string> said(backends.size());
  std::vector<std::thread> threads;
  threads.reserve(backends.size());
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const RankIdentity identity{.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks};
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
  }
  for (auto& thread : threads) thread.join();
  return said;
}

TEST(ExchangeBackend, is_memory_by_itself_and_Gloo_where_a_rank_asks_for_it) {
  using enum ExchangeBackend;
  EXPECT_THAT(joined_by({automatic, automatic}), Each("memory memory 2"));
  EXPECT_THAT(joined_by({gloo, gloo}), Each("Gloo (--ddp_backend gloo) gloo 2"));
  const auto mixed = joined_by({automatic, gloo});
  EXPECT_EQ(mixed[0], "Gloo (rank 1 takes no part in exchanges through memory) gloo 2");
  EXPECT_EQ(mixed[1], "Gloo (--ddp_backend gloo) gloo 2");
}

TEST(ExchangeBackend, that_cannot_serve_is_a_ConfigError) {
  const RankIdentity identity{.rank = 0, .size = 1};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  try {
    join_world(identity, store, {.backend = ExchangeBackend::nccl});
    FAIL() << "nccl on a CPU";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--ddp_backend nccl with --device cpu"));
  }
}

}  // namespace
}  // namespace trireme::memory_reach_test
