// How many backends a run makes, and how they close. A backend costs a GPU memory and a second; one that
// closes without order takes what travels with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/world.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;

struct Closings {
  int shut_down = 0;
  int aborted = 0;
};

class CountedBackend : public c10d::Backend {
 public:
  CountedBackend(int rank, int size, Closings& closings) : Backend(rank, size), closings_(closings) {}
  const std::string getBackendName() const override { return "counted"; }
  void shutdown() override {
    ++closings_.shut_down;
    if (fails) throw std::runtime_error("the network is gone");
  }
  void abort() override { ++closings_.aborted; }
  bool fails = false;

 private:
  Closings& closings_;
};

// One rank of a run whose connections are only counted.
class CountingWorld : public World {
 public:
  CountingWorld(int rank, int size)
      : World({.rank = rank, .size = size, .local_rank = rank, .local_size = size}, std::chrono::seconds(1),
              size) {}
  std::vector<std::string> connected;
  Closings closings;
  bool closing_fails = false;

 private:
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& key, const std::string& /*name*/,
                                            const GroupMembership& group) override {
    connected.push_back(key);
    auto backend =
        c10::make_intrusive<CountedBackend>(group.rank, static_cast<int>(group.world_ranks.size()), closings);
    backend->fails = closing_fails;
    return backend;
  }
};

// What a training run makes: the group that decides, then the mesh.
size_t backends_of_a_run(int ranks, const SequenceDegrees& shape, const MeshExchanges& exchanges = {}) {
  CountingWorld world(0, ranks);
  const auto train = world.make_group("train", {world.identity().all_ranks()});
  const Mesh mesh = make_mesh(world, shape, exchanges);
  return world.connected.size();
}

TEST(BackendSharing, a_run_makes_one_for_each_list_of_ranks_and_each_queue) {
  EXPECT_EQ(backends_of_a_run(1, {}), 0);
  EXPECT_EQ(backends_of_a_run(8, {.ulysses = 8}), 2) << "parameters and decisions; attention";
  EXPECT_EQ(backends_of_a_run(8, {.ring = 8}), 2);
  EXPECT_EQ(backends_of_a_run(8, {.ulysses = 4, .ring = 2}), 3) << "both axes, and everyone";
  EXPECT_EQ(backends_of_a_run(8, {.ulysses = 4, .ring = 2}, {.columns = true}), 4)
      << "those of a DeltaNet wait for none beside computation";
  EXPECT_EQ(backends_of_a_run(8, {.ulysses = 4}), 2) << "everyone, the sample's ranks";
  EXPECT_EQ(backends_of_a_run(8, {}), 1) << "data parallel alone";
}

TEST(BackendSharing, groups_stay_apart_in_all_but_their_backend) {
  CountingWorld world(1, 4);
  const auto a = world.make_group("a", {{0, 1}, {2, 3}}), b = world.make_group("b", {{0, 1}, {3, 2}}),
             turned = world.make_group("turned", {{1, 0}}),
             exchange = world.make_group("exchange", {{0, 1}}, Queue::exchange);
  EXPECT_EQ(&a->backend(), &b->backend());
  EXPECT_NE(&a->backend(), &turned->backend()) << "the order gives the ranks their numbers";
  EXPECT_NE(&a->backend(), &exchange->backend());
  a->count("all_gather", 8, {1, {}});
  EXPECT_TRUE(b->traffic().empty());
  EXPECT_EQ(b->name(), "b");
  EXPECT_THAT(world.connected, ElementsAre("0/a/0", "2/turned/0", "3/exchange/0"));
}

TEST(BackendSharing, a_backend_is_shut_down_once_when_its_last_group_goes) {
  CountingWorld world(0, 2);
  auto a = world.make_group("a", {{0, 1}}), b = world.make_group("b", {{0, 1}});
  a.reset();
  EXPECT_EQ(world.closings.shut_down, 0);
  b.reset();
  EXPECT_EQ(world.closings.shut_down, 1);
  EXPECT_EQ(world.closings.aborted, 0);
  const auto again = world.make_group("a", {{0, 1}});
  EXPECT_THAT(world.connected, ElementsAre("0/a/0", "2/a/0"))
      << "closed ones are not handed out, nor their keys";
}

TEST(BackendSharing, a_backend_is_aborted_while_an_exception_unwinds_for_the_peers_may_be_gone) {
  CountingWorld world(0, 2);
  try {
    const auto group = world.make_group("a", {{0, 1}});
    throw std::runtime_error("rank 1 is lost");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(world.closings.aborted, 1);
  EXPECT_EQ(world.closings.shut_down, 0);
}

TEST(BackendSharing, a_closing_that_fails_ends_nothing) {
  CountingWorld world(0, 2);
  world.closing_fails = true;
  world.make_group("a", {{0, 1}}).reset();
  EXPECT_EQ(world.closings.shut_down, 1);
}

}  // namespace
}  // namespace trireme
