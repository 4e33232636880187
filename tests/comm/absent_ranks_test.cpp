// What rank 0 of a run gets when the other ranks are absent: outputs of a real run's shapes, written whole
// with numbers that the rank holds, and the bytes that a real rank 0 sends and receives.
#include "trireme/comm/absent_ranks.h"

#include <array>

#include <gtest/gtest.h>

#include "trireme/base/sum_of.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/backend_library.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/mesh.h"
#include "trireme/comm/simulated_world.h"
#include "trireme/comm/thread_world.h"

namespace trireme {
namespace {

constexpr std::chrono::seconds kTimeout(10);
constexpr auto kLibraries =
    std::to_array({BackendLibrary::post_board, BackendLibrary::gloo, BackendLibrary::nccl});

std::vector<int64_t> even(int ranks) {
  return std::vector<int64_t>(static_cast<size_t>(ranks), 4);
}
std::vector<int64_t> uneven(int ranks) {  // of the first rank not the least
  std::vector<int64_t> rows(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) rows[static_cast<size_t>(rank)] = rank % 2 == 0 ? 5 : 4;
  return rows;
}

// Every collective with all that ranks may differ in; `look` gets what each gives.
void all_collectives(World& world, const std::function<void(const char*, const at::Tensor&)>& look) {
  const auto group = world.make_group("test", {world.identity().all_ranks()});
  const int ranks = world.size(), rank = world.rank();
  for (const auto& rows : {even(ranks), uneven(ranks)}) {
    const int64_t own = rows[static_cast<size_t>(rank)];
    const int64_t all = sum_of(rows);
    const std::vector<int64_t> of_each(rows.size(), own);
    look("all_gather", all_gather(*group, at::full({own, 3}, 2.0), rows));
    look("all_to_all", all_to_all(*group, at::full({own * ranks, 3}, 2.0), of_each, rows));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      look("reduce_scatter_sum",
           reduce_scatter_sum(*group, at::full({all, 3}, 2.0, dtype), rows, at::kFloat));
  }
  std::vector<int64_t> to_next(static_cast<size_t>(ranks), 0), from_last(to_next);
  to_next[static_cast<size_t>((rank + 1) % ranks)] =
      from_last[static_cast<size_t>((rank + ranks - 1) % ranks)] = 6;
  look("ring", all_to_all(*group, at::full({6, 3}, 2.0), to_next, from_last));
  for (const int64_t elements : {int64_t{5000}, int64_t{9001}}) {  // below, NCCL's rounds are fewer bytes
    at::Tensor sum = at::full({elements}, 2.0), largest = sum.clone(), root = sum.clone(),
               other = sum.clone();
    all_reduce_sum(*group, sum);
    look("all_reduce_sum", sum);
    all_reduce_max(*group, largest);
    look("all_reduce_max", largest);
    broadcast(*group, root, 0);
    look("broadcast", root);
    broadcast(*group, other, ranks - 1);
    look("broadcast of another", other);
  }
  barrier(*group);
  for (const auto& [name, traffic] : group->traffic())
    look(("sent by " + name).c_str(), at::tensor({traffic.calls, traffic.sent_bytes}));
}

using Seen = std::vector<std::pair<std::string, at::Tensor>>;

Seen of_threads(int ranks) {
  Seen seen;
  run_ranks_as_threads(ranks, [&](World& world) {
    all_collectives(world, [&](const char* name, const at::Tensor& value) {
      if (world.rank() == 0) seen.emplace_back(name, value.clone());
    });
  });
  return seen;
}

// Equal inputs on all ranks: then even the values are a real run's, but for a broadcast from another rank.
TEST(AbsentRanks, of_equal_inputs_give_the_shapes_values_and_sent_bytes_of_a_real_run) {
  for (const int ranks : {2, 3, 4}) {
    const Seen real = of_threads(ranks);
    for (const BackendLibrary library : kLibraries) {
      SimulatedWorld world(ranks, ranks, library, kTimeout);
      size_t at = 0;
      all_collectives(world, [&](const char* name, const at::Tensor& value) {
        ASSERT_LT(at, real.size());
        const auto& [expected_name, expected] = real[at++];
        EXPECT_EQ(name, expected_name);
        ASSERT_EQ(value.sizes(), expected.sizes()) << name;
        if (std::string(name) == "broadcast of another")
          EXPECT_TRUE(value.isfinite().all().item<bool>()) << name;
        else
          EXPECT_TRUE(value.equal(expected)) << name << " of " << ranks << "\n" << value << expected;
      });
      EXPECT_EQ(at, real.size());
    }
  }
}

// By hand: what reaches rank 0 of each collective.
TEST(AbsentRanks, received_bytes_are_those_that_others_send_to_this_rank) {
  for (const int ranks : {2, 3, 4}) {
    const int64_t others = ranks - 1, row_bytes = 3 * 4;
    for (const BackendLibrary library : kLibraries) {
      SimulatedWorld world(ranks, ranks, library, kTimeout);
      const auto group = world.make_group("test", {world.identity().all_ranks()});
      auto received = [&, before = int64_t{0}]() mutable {
        return world.stand_ins().received_bytes - std::exchange(before, world.stand_ins().received_bytes);
      };
      for (const auto& rows : {even(ranks), uneven(ranks)}) {
        const int64_t all = sum_of(rows);
        all_gather(*group, at::ones({rows[0], 3}), rows);
        EXPECT_EQ(received(), (all - rows[0]) * row_bytes);
        all_to_all(*group, at::ones({rows[0] * ranks, 3}),
                   std::vector<int64_t>(static_cast<size_t>(ranks), rows[0]), rows);
        EXPECT_EQ(received(), (all - rows[0]) * row_bytes);
        reduce_scatter_sum(*group, at::ones({all, 3}), rows);
        EXPECT_EQ(received(), rows[0] * others * row_bytes);
      }
      at::Tensor large = at::ones({ranks * 4000});
      all_reduce_sum(*group, large);
      EXPECT_EQ(received(), 2 * others * 4000 * 4);
      EXPECT_EQ(group->traffic().at("all_reduce_sum").sent_bytes, 2 * others * 4000 * 4);
      broadcast(*group, large, 0);
      EXPECT_EQ(received(), 0);
      broadcast(*group, large, 1);
      EXPECT_EQ(received(), large.numel() * 4);
    }
  }
}

TEST(AbsentRanks, a_gather_of_uneven_rows_repeats_this_ranks_rows) {
  for (const BackendLibrary library : {BackendLibrary::post_board, BackendLibrary::gloo}) {
    SimulatedWorld world(3, 3, library, kTimeout);
    const auto group = world.make_group("test", {world.identity().all_ranks()});
    const std::vector<int64_t> rows{2, 1, 2};
    EXPECT_TRUE(
        all_gather(*group, at::tensor({1.5, 2.5}), rows).equal(at::tensor({1.5, 2.5, 1.5, 1.5, 2.5})));
  }
}

// Two machines of two ranks.
TEST(AbsentRanks, read_each_others_memory_on_one_machine_alone) {
  SimulatedWorld world(4, 2, BackendLibrary::post_board, kTimeout);
  const auto neighbours = world.make_group("machine", {{0, 1}, {2, 3}}),
             all = world.make_group("all", {{0, 1, 2, 3}});
  EXPECT_TRUE(ranks_read_each_other(neighbours->backend()));
  EXPECT_FALSE(ranks_read_each_other(all->backend()));
}

TEST(AbsentRanks, are_connected_by_an_exchange_over_nccl_alone) {
  for (const BackendLibrary library : kLibraries) {
    SimulatedWorld world(12, 12, library, kTimeout);
    const Mesh mesh = make_mesh(world, {.ulysses = 4, .ring = 3});
    connect_exchanges(mesh, at::kCPU);
    const auto sent_bytes = [](const Group& group) {
      const auto sent = group.traffic().find("all_to_all");
      return sent == group.traffic().end() ? 0 : sent->second.sent_bytes;
    };
    EXPECT_EQ(sent_bytes(*mesh.ulysses), library == BackendLibrary::nccl ? 3 : 0);
    EXPECT_EQ(sent_bytes(*mesh.ring), library == BackendLibrary::nccl ? 1 : 0);
    EXPECT_EQ(sent_bytes(*mesh.sp), 0);
    EXPECT_EQ(sent_bytes(*mesh.all), 0);
    const Mesh more = make_mesh(world, {.ulysses = 4, .ring = 3}, {.columns = true, .blocks_of_sums = true});
    connect_exchanges(more, at::kCPU);
    EXPECT_EQ(sent_bytes(*more.ring), library == BackendLibrary::nccl ? 1 : 0);
    EXPECT_EQ(sent_bytes(*more.sp), library == BackendLibrary::nccl ? 11 : 0);
    EXPECT_EQ(sent_bytes(*more.all), library == BackendLibrary::nccl ? 11 : 0);
    const Mesh gathering = make_mesh(world, {.ulysses = 4, .ring = 3}, {.gathered_keys = true});
    connect_exchanges(gathering, at::kCPU);
    EXPECT_EQ(sent_bytes(*gathering.ring), library == BackendLibrary::nccl ? 2 : 0);
    connect_exchanges(make_mesh(world, {}), at::kCPU);  // groups of one
  }
}

TEST(AbsentRanks, agree_with_what_this_rank_says) {
  for (const BackendLibrary library : kLibraries) {
    SimulatedWorld world(4, 2, library, kTimeout);
    const auto group = world.make_group("test", {world.identity().all_ranks()});
    Agreement agreement(*group, at::kCPU);
    EXPECT_EQ(agreement.gather(std::vector<int64_t>{7, 8}),
              std::vector<std::vector<int64_t>>(4, std::vector<int64_t>{7, 8}));
    EXPECT_EQ(agreement.largest(5), 5);
    EXPECT_EQ(agreement.sum(int64_t{5}), 20);
    EXPECT_EQ(agreement.of_rank_0(9), 9);
    EXPECT_EQ(agreement.first_text("why"), "why");
    EXPECT_TRUE(agreement.any(true));
    EXPECT_THROW(agreement.all_or_none("trying", [] { throw ConfigError("no"); }), ConfigError);
    EXPECT_EQ(world.common_machine_ranks(), 2);
  }
}

TEST(AbsentRanks, make_the_mesh_of_rank_0_and_are_refused_as_real_ranks_are) {
  SimulatedWorld world(8, 8, BackendLibrary::post_board, kTimeout);
  const Mesh mesh = make_mesh(world, {.ulysses = 2, .ring = 2});
  EXPECT_EQ(mesh.all->size(), 8);
  EXPECT_EQ(mesh.sp->world_ranks(), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(mesh.ring->world_ranks(), (std::vector{0, 2}));
  EXPECT_THROW(make_mesh(world, {.ulysses = 3}), ConfigError);
}

TEST(AbsentRanks, take_the_place_of_a_known_library_alone) {
  EXPECT_THROW(make_absent_ranks_backend(std::make_shared<StandIns>(), 2, BackendLibrary::other),
               InternalError);
}

}  // namespace
}  // namespace trireme
