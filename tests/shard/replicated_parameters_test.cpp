// Values whole on every rank whose masters are sharded: a step changes a rank's own share and talks to no
// other rank; the ranks trade the new values when a unit is next used, once.
#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/parameter_store.h"
#include "trireme/shard/unit_shares.h"

#include "tests/support/change_master.h"

namespace trireme {
namespace {

constexpr int64_t kElements = 96;  // with the padding of 2 and of 3 ranks

int64_t gathers(const Group& group) {
  const auto found = group.traffic().find("all_gather");
  return found == group.traffic().end() ? 0 : found->second.calls;
}

bool all_equal(const at::Tensor& values, const at::Tensor& expected) {
  return at::equal(values.to(at::kFloat), expected);
}

// `rank` adds this to its masters.
double added(int rank) {
  return 0.5 * (rank + 1);
}

TEST(ReplicatedParameters, new_values_are_traded_at_the_next_use_and_not_before_or_again) {
  for (const int ranks : {2, 3})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << dtype);
      run_ranks_as_threads(ranks, [&](World& world) {
        const at::NoGradGuard no_autograd;
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        Group& group = *mesh.all;
        const auto store = make_replicated_parameters({{"used", kElements, {}}, {"other", kElements, {}}},
                                                      group, true, {.compute_dtype = dtype});
        // Small whole numbers and halves, which both dtypes hold.
        at::Tensor expected = at::arange(kElements, at::kFloat);
        const UnitShare own = share_of(kElements, ranks, group.rank());
        testing::change_master(*store, 0, [&](const at::Tensor& master) {
          master.copy_(expected.narrow(0, own.begin, own.elements));
        });
        store->gather(0);
        testing::change_master(*store, 1, [](const at::Tensor& master) { master.fill_(1); });
        store->gather(1);
        group.reset_traffic();
        const auto step = [&] {
          testing::change_master(*store, 0,
                                 [&](const at::Tensor& master) { master.add_(added(group.rank())); });
          for (int rank = 0; rank < ranks; ++rank) {
            const UnitShare share = share_of(kElements, ranks, rank);
            expected.narrow(0, share.begin, share.elements).add_(added(rank));
          }
        };
        step();
        EXPECT_EQ(gathers(group), 0);
        EXPECT_TRUE(all_equal(store->gather(1), at::ones({kElements})));
        EXPECT_EQ(gathers(group), 0) << "the other unit was not stepped";
        EXPECT_TRUE(all_equal(store->gather(0), expected));
        EXPECT_EQ(gathers(group), 1);
        EXPECT_TRUE(all_equal(store->gather(0), expected));
        EXPECT_EQ(gathers(group), 1);

        step();
        step();
        EXPECT_TRUE(all_equal(store->whole_master(0), expected));
        EXPECT_TRUE(all_equal(store->gather(0), expected));
        // Masters beside the values are put together by themselves.
        EXPECT_EQ(gathers(group), dtype == at::kFloat ? 2 : 3);

        group.reset_traffic();
        step();
        EXPECT_TRUE(store->prefetch_is_collective());
        for (int again = 0; again < 2; ++again) store->prefetch(0);
        store->prefetch(1);
        EXPECT_TRUE(all_equal(store->gather(0), expected));
        EXPECT_TRUE(all_equal(store->gather(0), expected));
        EXPECT_EQ(gathers(group), 1) << "it was begun ahead, once";
      });
    }
}

TEST(ReplicatedParameters, new_values_are_traded_in_the_values_themselves) {
  install_cpu_caching_allocator();  // counts bytes
  for (const int ranks : {2, 3})
    run_ranks_as_threads(ranks, [&](World& world) {
      const Mesh mesh = make_mesh(world, {.ulysses = ranks});
      const auto account = std::make_shared<MemoryAccount>();
      const MemoryScope rank(account, MemoryCategory::other);
      const auto store = make_replicated_parameters({{"used", kElements, {}}}, *mesh.all, true, {});
      testing::change_master(*store, 0, [&](const at::Tensor& master) { master.add_(1); });
      const int64_t bytes = account->state().peak[MemoryCategory::parameters];
      EXPECT_GE(bytes, kElements * 4);
      EXPECT_TRUE(all_equal(store->gather(0), at::ones({kElements})));
      EXPECT_EQ(account->state().peak[MemoryCategory::parameters], bytes);
      EXPECT_EQ(account->state().peak[MemoryCategory::communication], 0);
    });
}

}  // namespace
}  // namespace trireme
