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

std::vector<std::string> hasty_waits(SumsFinish sums, at::ScalarType reduce_dtype) {
  constexpr int kUnits = 5, kMicroBatches = 2;
  SimulatedStreams streams(/*seed=*/1);
  Group group = testing::simulated_group(streams, 2);
  const auto store =
      make_gradients_summed_at_close(std::vector<FlatUnit>(kUnits, {"unit", kElements, {}}), group,
                                     /*shard=*/true, {.reduce_dtype = reduce_dtype, .sums = sums});
  for (int step = 0; step < 2; ++step) {
    streams.begin_pass();
    store->clear();
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch)
      for (int unit = kUnits - 1; unit >= 0; --unit) {
        store->open(unit);
        streams.compute_unit([] {});
        store->close(unit);
        streams.advance(3);
      }
    streams.begin_pass();  // no unit comes before the sums are read
    store->finish();
  }
  streams.finish();
  EXPECT_TRUE(streams.idle());
  return streams.hasty_waits();
}

TEST(GradientStreams, computation_does_not_wait_for_a_sum_that_had_less_than_a_units_time) {
  install_cpu_caching_allocator();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_THAT(hasty_waits(SumsFinish::one_unit_later, dtype), ::testing::IsEmpty());
    // The record does see those that are waited for at once.
    EXPECT_THAT(hasty_waits(SumsFinish::at_close, dtype), ::testing::SizeIs(20));
  }
}

}  // namespace
}  // namespace trireme::gradient_streams_test
