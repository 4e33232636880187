// What gradient stores hold from one step to the next: sums of this step alone, while another thread may
// still read those of the step before, unit by unit.
#include "trireme/shard/gradient_store.h"

#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {
namespace {

const std::vector<FlatUnit> kUnits = {{"first", 48, {}}, {"second", 32, {}}, {"unused", 16, {}}};

bool all_are(const at::Tensor& values, double expected) {
  return values.eq(expected).all().item<bool>();
}

// The store of a ZeRO stage.
std::unique_ptr<GradientStore> make_store(int stage, Group& group) {
  return stage < 2 ? make_whole_gradients(kUnits, group, stage > 0, {})
                   : make_gradients_summed_at_close(kUnits, group, true, {});
}

void for_all_stores(const std::function<void(GradientStore&, int ranks)>& body) {
  for (const int ranks : {1, 2, 3})
    for (const int stage : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, ZeRO " << stage);
      run_ranks_as_threads(ranks, [&](World& world) {
        const at::NoGradGuard no_autograd;
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        const auto store = make_store(stage, *mesh.all);
        body(*store, ranks);
      });
    }
}

void add(GradientStore& store, int unit, double value) {
  store.open(unit).add_(value);
  store.close(unit);
}

TEST(GradientStore, a_step_begins_at_zero_and_units_that_it_does_not_open_end_there) {
  for_all_stores([](GradientStore& store, int ranks) {
    for (int step = 1; step <= 3; ++step) {
      store.clear();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        add(store, 1, step);
        if (step != 2) add(store, 0, 10 * step);
      }
      store.finish();
      EXPECT_TRUE(all_are(store.whole(0), step == 2 ? 0 : 20 * step * ranks)) << "step " << step;
      EXPECT_TRUE(all_are(store.whole(1), 2 * step * ranks)) << "step " << step;
      EXPECT_TRUE(all_are(store.whole(2), 0)) << "step " << step;
    }
  });
}

TEST(GradientStore, a_unit_may_be_read_in_the_next_step_until_it_is_opened_there) {
  for_all_stores([](GradientStore& store, int ranks) {
    store.clear();
    for (const int unit : {0, 1, 2}) add(store, unit, 1 + unit);
    store.finish();
    store.clear();
    add(store, 1, 7);
    EXPECT_TRUE(all_are(store.summed(0), 1 * ranks));
    EXPECT_TRUE(all_are(store.summed(2), 3 * ranks));
    add(store, 0, 5);
    EXPECT_TRUE(all_are(store.summed(2), 3 * ranks));
    store.finish();
    store.multiply(2);
    EXPECT_TRUE(all_are(store.whole(0), 10 * ranks));
    EXPECT_TRUE(all_are(store.whole(1), 14 * ranks));
    EXPECT_TRUE(all_are(store.whole(2), 0));
  });
}

TEST(GradientStore, a_sum_that_is_handed_over_is_the_receivers_own) {
  for (const bool shard : {false, true})
    run_ranks_as_threads(2, [&](World& world) {
      const at::NoGradGuard no_autograd;
      const Mesh mesh = make_mesh(world, {.ulysses = 2});
      std::vector<std::pair<int, at::Tensor>> received;
      const auto store = make_gradients_summed_at_close(
          kUnits, *mesh.all, shard, {},
          [&](int unit, at::Tensor gradient) { received.emplace_back(unit, std::move(gradient)); });
      for (int step = 1; step <= 2; ++step) {
        store->clear();
        for (const int unit : {1, 0}) add(*store, unit, step * (1 + unit));
        store->finish();
      }
      ASSERT_EQ(received.size(), 4U);
      for (size_t at = 0; at < received.size(); ++at) {
        const auto& [unit, gradient] = received[at];
        EXPECT_EQ(unit, at % 2 == 0 ? 1 : 0);
        EXPECT_TRUE(all_are(gradient, 2. * (at < 2 ? 1 : 2) * (1 + unit)));
        EXPECT_EQ(gradient.numel(), shard ? share_sizes(kUnits[static_cast<size_t>(unit)].elements,
                                                        2)[static_cast<size_t>(world.rank())]
                                          : kUnits[static_cast<size_t>(unit)].elements);
      }
    });
}

}  // namespace
}  // namespace trireme
