#include "trireme/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/ranks.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Mesh, puts_neighbours_in_a_ulysses_group_and_equal_slices_in_a_dp_group) {
  run_ranks_as_threads(6, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = 3});
    const int first = world.rank() / 3 * 3;
    EXPECT_THAT(mesh.ulysses->world_ranks(), ElementsAre(first, first + 1, first + 2));
    EXPECT_THAT(mesh.sp->world_ranks(), ElementsAre(first, first + 1, first + 2));
    EXPECT_THAT(mesh.dp->world_ranks(), ElementsAre(world.rank() % 3, world.rank() % 3 + 3));
    EXPECT_EQ(mesh.all->size(), 6);
    EXPECT_EQ(mesh.all->rank(), world.rank());
    EXPECT_EQ(mesh.ulysses->rank(), world.rank() % 3);
    EXPECT_EQ(mesh.dp->rank(), world.rank() / 3);
    EXPECT_EQ(mesh.dp_size, 2);
    EXPECT_EQ(mesh.dp_index, world.rank() / 3);
  });
}

class MeshOn : public ::testing::TestWithParam<testing::Backend> {};

TEST_P(MeshOn, groups_of_one_run_do_not_mix) {
  testing::run_ranks(GetParam(), 4, [](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = 2});
    at::Tensor rank = at::full({1}, world.rank(), at::kLong);
    at::Tensor all = rank.clone(), sp = rank.clone(), dp = rank.clone(), ulysses = rank.clone();
    all_reduce_sum(*mesh.all, all);
    all_reduce_sum(*mesh.sp, sp);
    all_reduce_sum(*mesh.ulysses, ulysses);
    all_reduce_sum(*mesh.dp, dp);
    const int64_t pair = world.rank() / 2 * 2;
    EXPECT_EQ(all.item<int64_t>(), 6);
    EXPECT_EQ(sp.item<int64_t>(), 2 * pair + 1);
    EXPECT_EQ(ulysses.item<int64_t>(), 2 * pair + 1);
    EXPECT_EQ(dp.item<int64_t>(), 2 * (world.rank() % 2) + 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MeshOn,
                         ::testing::Values(testing::Backend::threads, testing::Backend::gloo),
                         [](const auto& info) { return testing::name_of(info.param); });

std::string refusal(int ranks, const MeshShape& shape) {
  try {
    run_ranks_as_threads(ranks, [&](World& world) { make_mesh(world, shape); });
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mesh, refuses_a_ulysses_degree_that_does_not_divide_and_lists_those_that_do) {
  EXPECT_THAT(refusal(6, {.ulysses = 4}), HasSubstr("it may be 1, 2, 3, 6"));
  EXPECT_THAT(refusal(2, {.ulysses = 0}), HasSubstr("ulysses degree 0"));
  EXPECT_THAT(refusal(1, {.ulysses = 2}), HasSubstr("number of ranks, 1"));
}

TEST(Mesh, refuses_axes_that_do_not_exist_yet_by_name) {
  EXPECT_THAT(refusal(2, {.ring = 2}), HasSubstr("'ring'"));
  EXPECT_THAT(refusal(2, {.tensor = 2}), HasSubstr("'tensor'"));
  EXPECT_THAT(refusal(2, {.pipeline = 2}), HasSubstr("'pipeline'"));
}

TEST(Mesh, a_world_of_one_has_groups_of_one) {
  run_ranks_as_threads(1, [](World& world) {
    const Mesh mesh = make_mesh(world, {});
    for (const Group* group : {mesh.all.get(), mesh.sp.get(), mesh.ulysses.get(), mesh.dp.get()}) {
      EXPECT_EQ(group->size(), 1);
      EXPECT_THROW(group->backend(), InternalError);
    }
  });
}

}  // namespace
}  // namespace trireme
