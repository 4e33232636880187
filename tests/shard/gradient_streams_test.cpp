// Sums of gradients beside backward, on the streams of a GPU: the computation does not wait for a
// reduce-scatter that had less than a unit's time. (Values are in gradient_store_test.cpp: ATen's own
// operations are no work of these streams.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/shard/gradient_store.h"

#include "tests/support/simulated_group.h"

namespace trireme::gradient_streams_test {
namespace {

using testing::SimulatedStreams;

constexpr int64_t kElements = 40'000;  // blocks that the allocator keeps, and never gives back to the kernel

// Of two steps.
std::vector<std::string> hasty_waits(int stage, SumsFinish sums, at::ScalarType reduce_dtype) {
  constexpr int kUnits = 5, kMicroBatches = 2;
  SimulatedStreams streams(/*seed=*/1);
  Group group = testing::simulated_group(streams, 2);
  const GradientSettings settings{.reduce_dtype = reduce_dtype, .sums = sums};
  const std::vector<FlatUnit> units(kUnits, {"unit", kElements, {}});
  const auto store = stage < 2 ? make_whole_gradients(units, group, stage > 0, settings)
                               : make_gradients_summed_at_close(units, group, /*shard=*/true, settings);
  for (int step = 0; step < 2; ++step) {
    streams.begin_pass();
    store->clear();
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      if (micro_batch + 1 == kMicroBatches) store->begin_last_micro_batch();
      for (int unit = 0; unit < kUnits; ++unit) {  // forward
        streams.compute_unit([] {});
        streams.advance(3);
      }
      for (int unit = kUnits - 1; unit >= 0; --unit) {
        store->open(unit);
        streams.compute_unit([] {});
        store->close(unit);
        streams.advance(3);
      }
    }
    store->finish();
  }
  streams.finish();
  EXPECT_TRUE(streams.idle());
  return streams.hasty_waits();
}

TEST(GradientStreams, computation_does_not_wait_for_a_sum_that_had_less_than_a_units_time) {
  install_cpu_caching_allocator();
  struct Waits {
    int stage;
    // In each step. Of the last unit's sum, which no unit follows: at finish. ZeRO 0 gathers two units then.
    size_t later;
    size_t at_once;
  };
  for (const auto& [stage, later, at_once] : {Waits{0, 3, 10}, Waits{1, 1, 5}, Waits{2, 1, 10}})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << "ZeRO " << stage << ", " << dtype);
      EXPECT_THAT(hasty_waits(stage, SumsFinish::one_unit_later, dtype), ::testing::SizeIs(2 * later));
      EXPECT_THAT(hasty_waits(stage, SumsFinish::at_close, dtype), ::testing::SizeIs(2 * at_once));
    }
}

}  // namespace
}  // namespace trireme::gradient_streams_test
