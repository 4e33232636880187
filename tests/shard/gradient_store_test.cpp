// What gradient stores hold from one step to the next: sums of this step alone, while another thread may
// still read those of the step before, unit by unit.
#include "trireme/shard/gradient_store.h"

#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"

namespace trireme {
namespace {

// With the padding of 1, 2 and 3 ranks.
const std::vector<FlatUnit> kUnits = {{"first", 192, {}}, {"second", 96, {}}, {"unused", 96, {}}};

bool all_are(const at::Tensor& values, double expected) {
  return values.eq(expected).all().item<bool>();
}

// The store of a ZeRO stage.
std::unique_ptr<GradientStore> make_store(int stage, SumsFinish sums, Group& group,
                                          at::ScalarType reduce_dtype = at::kFloat) {
  const GradientSettings settings{.reduce_dtype = reduce_dtype, .sums = sums};
  return stage < 2 ? make_whole_gradients(kUnits, group, stage > 0, settings)
                   : make_gradients_summed_at_close(kUnits, group, true, settings);
}

void for_all_stores(const std::vector<int>& rank_counts, at::ScalarType reduce_dtype,
                    const std::function<void(GradientStore&, World&)>& body) {
  for (const int ranks : rank_counts)
    for (const int stage : {0, 1, 2})
      for (const SumsFinish sums : {SumsFinish::at_close, SumsFinish::one_unit_later}) {
        SCOPED_TRACE(::testing::Message()
                     << ranks << " ranks, ZeRO " << stage
                     << (sums == SumsFinish::at_close ? "" : ", sums finish one unit later"));
        run_ranks_as_threads(ranks, [&](World& world) {
          const at::NoGradGuard no_autograd;
          const Mesh mesh = make_mesh(world, {.ulysses = ranks});
          const auto store = make_store(stage, sums, *mesh.all, reduce_dtype);
          body(*store, world);
        });
      }
}
void for_all_stores(const std::function<void(GradientStore&, int ranks)>& body) {
  for_all_stores({1, 2, 3}, at::kFloat,
                 [&](GradientStore& store, World& world) { body(store, world.size()); });
}

void add(GradientStore& store, int unit, double value) {
  const OpenGradient gradient = store.open(unit);
  if (gradient.state == SumState::undefined) gradient.flat.zero_();
  gradient.flat.add_(value);
  store.close(unit);
}

TEST(GradientStore, a_step_begins_at_zero_and_units_that_it_does_not_open_end_there) {
  for_all_stores([](GradientStore& store, int ranks) {
    for (int step = 1; step <= 3; ++step) {
      store.clear();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        if (micro_batch == 1) store.begin_last_micro_batch();
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
    store.begin_last_micro_batch();
    for (const int unit : {0, 1, 2}) add(store, unit, 1 + unit);
    store.finish();
    store.clear();
    store.begin_last_micro_batch();
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

// Values that rounding tells apart, with a unit that is opened again right after its close, as the first of
// the next micro-batch is.
TEST(GradientStore, sums_that_finish_one_unit_later_are_bitwise_the_others) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int stage : {0, 1, 2})
      run_ranks_as_threads(3, [&](World& world) {
        const at::NoGradGuard no_autograd;
        const Mesh mesh = make_mesh(world, {.ulysses = 3});
        const auto sums_of = [&](SumsFinish sums) {
          const auto store = make_store(stage, sums, *mesh.all, dtype);
          store->clear();
          for (const std::vector<int>& micro_batch : {std::vector{2, 1, 0}, std::vector{0, 1, 2}}) {
            if (micro_batch.back() == 2) store->begin_last_micro_batch();
            for (const int unit : micro_batch) {
              const auto [gradient, state] = store->open(unit);
              if (state == SumState::undefined) gradient.zero_();
              gradient.add_(at::arange(gradient.numel(), at::kFloat).add_(world.rank() * 7 + unit).sin_());
              store->close(unit);
            }
          }
          store->finish();
          return std::vector{store->summed(0), store->summed(1), store->summed(2)};
        };
        const auto at_close = sums_of(SumsFinish::at_close), later = sums_of(SumsFinish::one_unit_later);
        for (size_t unit = 0; unit < kUnits.size(); ++unit)
          EXPECT_TRUE(at_close[unit].equal(later[unit])) << "ZeRO " << stage << ", unit " << unit;
      });
}

// Each rank's values are rounded once, and added up in fp32 in rank order.
TEST(GradientStore, of_what_travels_in_bf16_has_the_sum_in_fp32_at_every_stage) {
  constexpr int kRanks = 3;
  const auto values = [](int rank) {
    return at::arange(kUnits[0].elements, at::kFloat).add_(rank * 7).sin_().mul_(1 + 100 * rank);
  };
  at::Tensor expected = values(0).to(at::kBFloat16).to(at::kFloat);
  for (int rank = 1; rank < kRanks; ++rank)
    expected = expected + values(rank).to(at::kBFloat16).to(at::kFloat);
  for_all_stores({kRanks}, at::kBFloat16, [&](GradientStore& store, World& world) {
    store.clear();
    store.begin_last_micro_batch();
    store.open(0).flat.copy_(values(world.rank()));
    store.close(0);
    store.finish();
    EXPECT_TRUE(at::equal(store.whole(0), expected));
  });
}

TEST(GradientStore, a_sum_that_a_broken_step_left_is_not_in_the_next) {
  for_all_stores([](GradientStore& store, int ranks) {
    store.clear();
    store.begin_last_micro_batch();
    add(store, 0, 1);
    store.clear();
    store.begin_last_micro_batch();
    add(store, 1, 2);
    store.finish();
    EXPECT_TRUE(all_are(store.whole(0), 0));
    EXPECT_TRUE(all_are(store.whole(1), 2 * ranks));
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
        EXPECT_EQ(gradient.numel(), kUnits[static_cast<size_t>(unit)].elements / (shard ? 2 : 1));
      }
    });
}

}  // namespace
}  // namespace trireme
