#include "trireme/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Mesh, puts_neighbours_in_a_ulysses_group) {
  run_ranks_as_threads(6, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = 3});
    const int first = world.rank() / 3 * 3;
    EXPECT_THAT(mesh.ulysses->world_ranks(), ElementsAre(first, first + 1, first + 2));
    EXPECT_THAT(mesh.sp->world_ranks(), ElementsAre(first, first + 1, first + 2));
    EXPECT_EQ(mesh.all->size(), 6);
    EXPECT_EQ(mesh.all->rank(), world.rank());
    EXPECT_EQ(mesh.ulysses->rank(), world.rank() % 3);
    EXPECT_EQ(mesh.dp_size, 2);
    EXPECT_EQ(mesh.dp_index, world.rank() / 3);
  });
}

// rank = (dp x R + ring index) x U + ulysses index.
TEST(Mesh, a_ring_joins_ranks_of_one_ulysses_place_and_sp_holds_both_axes) {
  run_ranks_as_threads(8, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = 2, .ring = 2});
    const int first = world.rank() / 4 * 4, ring = world.rank() % 4 / 2, u = world.rank() % 2;
    EXPECT_THAT(mesh.sp->world_ranks(), ElementsAre(first, first + 1, first + 2, first + 3));
    EXPECT_THAT(mesh.ulysses->world_ranks(), ElementsAre(first + 2 * ring, first + 2 * ring + 1));
    EXPECT_THAT(mesh.ring->world_ranks(), ElementsAre(first + u, first + 2 + u));
    EXPECT_EQ(mesh.sp->rank(), world.rank() % 4);
    EXPECT_EQ(mesh.ulysses->rank(), u);
    EXPECT_EQ(mesh.ring->rank(), ring);
    EXPECT_EQ(mesh.dp_size, 2);
    EXPECT_EQ(mesh.dp_index, world.rank() / 4);
  });
}

TEST(Mesh, an_axis_of_one_leaves_the_other_the_whole_sample) {
  run_ranks_as_threads(3, [](World& world) {
    const Mesh ring = make_mesh(world, {.ring = 3}), ulysses = make_mesh(world, {.ulysses = 3});
    EXPECT_EQ(ring.ring->world_ranks(), ring.sp->world_ranks());
    EXPECT_EQ(ring.ulysses->size(), 1);
    EXPECT_EQ(ulysses.ulysses->world_ranks(), ulysses.sp->world_ranks());
    EXPECT_EQ(ulysses.ring->size(), 1);
  });
}

class MeshOn : public ::testing::TestWithParam<testing::Backend> {};

TEST_P(MeshOn, groups_of_one_run_do_not_mix) {
  testing::run_ranks(GetParam(), 4, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = 2});
    at::Tensor rank = at::full({1}, world.rank(), at::kLong);
    at::Tensor all = rank.clone(), sp = rank.clone(), ulysses = rank.clone();
    all_reduce_sum(*mesh.all, all);
    all_reduce_sum(*mesh.sp, sp);
    all_reduce_sum(*mesh.ulysses, ulysses);
    const int64_t pair = world.rank() / 2 * 2;
    EXPECT_EQ(all.item<int64_t>(), 6);
    EXPECT_EQ(sp.item<int64_t>(), 2 * pair + 1);
    EXPECT_EQ(ulysses.item<int64_t>(), 2 * pair + 1);
  });
}

TEST_P(MeshOn, sums_over_ring_then_ulysses_are_sums_over_the_sample) {
  testing::run_ranks(GetParam(), 4, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = 2, .ring = 2});
    const at::Tensor mine = at::full({1}, 1 << world.rank(), at::kLong);
    at::Tensor ring = mine.clone(), ulysses = mine.clone(), sample = mine.clone();
    all_reduce_sum(*mesh.ring, ring);
    all_reduce_sum(*mesh.ulysses, ulysses);
    all_reduce_sum(*mesh.sp, sample);
    EXPECT_EQ(ring.item<int64_t>(), world.rank() % 2 == 0 ? 0b0101 : 0b1010);
    EXPECT_EQ(ulysses.item<int64_t>(), world.rank() / 2 == 0 ? 0b0011 : 0b1100);
    EXPECT_EQ(sample.item<int64_t>(), 0b1111);
    all_reduce_sum(*mesh.ulysses, ring);
    EXPECT_EQ(ring.item<int64_t>(), 0b1111);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MeshOn,
                         ::testing::Values(testing::Backend::threads, testing::Backend::gloo,
                                           testing::Backend::memory),
                         [](const auto& info) { return testing::name_of(info.param); });

std::string refusal(int ranks, const SequenceDegrees& shape) {
  return testing::message_of<ConfigError>(
      [&] { run_ranks_as_threads(ranks, [&](World& world) { make_mesh(world, shape); }); });
}

TEST(Mesh, refuses_axes_whose_product_does_not_divide_and_lists_those_that_do) {
  EXPECT_THAT(refusal(6, {.ulysses = 4}),
              AllOf(HasSubstr("ulysses degree 4"), HasSubstr("number of ranks, 6"),
                    HasSubstr("may be 1 x 1, 2 x 1, 1 x 2, 3 x 1, 1 x 3, 6 x 1, 3 x 2, 2 x 3, 1 x 6")));
  EXPECT_THAT(refusal(6, {.ulysses = 2, .ring = 2}),
              AllOf(HasSubstr("ulysses degree 2 x ring degree 2"), HasSubstr("number of ranks, 6")));
  EXPECT_THAT(refusal(4, {.ulysses = 2, .ring = 3}),
              HasSubstr("may be 1 x 1, 2 x 1, 1 x 2, 4 x 1, 2 x 2, 1 x 4"));
  EXPECT_THAT(refusal(2, {.ulysses = 0}), HasSubstr("ulysses degree 0"));
  EXPECT_THAT(refusal(2, {.ring = 0}), HasSubstr("ring degree 0"));
  EXPECT_THAT(refusal(2, {.ulysses = -1, .ring = -2}), HasSubstr("ring degree -2"));
  EXPECT_THAT(refusal(1, {.ulysses = 2}), HasSubstr("number of ranks, 1"));
  EXPECT_THAT(refusal(1, {.ring = 2}), HasSubstr("number of ranks, 1"));
  EXPECT_THAT(refusal(4, {.ulysses = 65536, .ring = 65536}), HasSubstr("ring degree 65536"));  // 2^32
}

TEST(Mesh, a_world_of_one_has_groups_of_one) {
  run_ranks_as_threads(1, [](World& world) {
    const Mesh mesh = make_mesh(world, {});
    for (const Group* group : {mesh.all.get(), mesh.sp.get(), mesh.ulysses.get(), mesh.ring.get()}) {
      EXPECT_EQ(group->size(), 1);
      EXPECT_THROW(group->backend(), InternalError);
    }
  });
}

}  // namespace
}  // namespace trireme
