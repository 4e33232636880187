// Running sums of gradients on the host of a GPU: what they are after each micro-batch, however late the
// GPU's streams do their work, and that neither the host nor the computation waits for a copy that was given
// no unit's time.
#include "trireme/shard/offloaded_sums.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"

#include "tests/support/simulated_streams.h"

namespace trireme::offloaded_sums_test {
namespace {

using testing::SimulatedStreams;

constexpr int kUnits = 5;
constexpr int64_t kElements = 40'000;  // blocks that the allocator keeps, and never gives back to the kernel

bool all_are(const at::Tensor& values, double expected) {
  return values.eq(expected).all().item<bool>();
}

// One unit's backward: its gradient is `value` everywhere.
void add(OffloadedSums& sums, SimulatedStreams& streams, int unit, float value) {
  sums.expect(unit);
  const at::Tensor gradient = at::empty({kElements}, at::kFloat);
  float* const data = gradient.mutable_data_ptr<float>();
  streams.compute_unit([=] { std::fill_n(data, kElements, value); });
  const at::Tensor earlier = sums.earlier(unit);
  if (earlier.defined())
    streams.compute([=, from = earlier.const_data_ptr<float>()] {
      std::transform(data, data + kElements, from, data, std::plus<>());
    });
  sums.put(unit, gradient);
}

TEST(OffloadedSums, are_those_of_the_step_in_every_order_of_the_streams_and_nobody_waits_in_haste) {
  install_cpu_caching_allocator();
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedStreams streams(seed);
    std::mt19937 random(seed);
    PinnedPool pool(no_pinning());
    OffloadedSums sums(std::vector<int64_t>(kUnits, kElements), at::kCPU, streams.copy_stream(), pool);
    for (int step = 1; step <= 3; ++step) {
      sums.clear();
      // Unit 0 is not used in the second step.
      const int lowest = step == 2 ? 1 : 0;
      for (int micro_batch = 0; micro_batch < step; ++micro_batch)
        for (int unit = kUnits - 1; unit >= lowest; --unit) {
          add(sums, streams, unit, static_cast<float>(10 * step + unit));
          // Work on memory of its own, that is given out again at once.
          const at::Tensor own = at::empty({kElements}, at::kFloat);
          streams.compute([data = own.mutable_data_ptr<float>()] { std::fill_n(data, kElements, -1.F); });
          streams.advance(static_cast<int>(random() % 8));
        }
      EXPECT_THAT(streams.hasty_waits(), ::testing::IsEmpty());
      streams.begin_pass();  // no unit comes before the values are read
      sums.finish();
      for (int unit = 0; unit < kUnits; ++unit)
        EXPECT_TRUE(all_are(sums.on_host(unit), unit < lowest ? 0 : step * (10 * step + unit)))
            << "step " << step << ", unit " << unit;
    }
    sums.clear();
    streams.finish();
    EXPECT_TRUE(streams.idle());
  }
}

TEST(OffloadedSums, of_a_step_that_ended_early_are_forgotten) {
  SimulatedStreams streams(3);
  PinnedPool pool(no_pinning());
  OffloadedSums sums({kElements}, at::kCPU, streams.copy_stream(), pool);
  sums.clear();
  add(sums, streams, 0, 1);
  sums.expect(0);  // and no more
  sums.clear();
  add(sums, streams, 0, 2);
  EXPECT_TRUE(all_are(sums.on_host(0), 2));
}

}  // namespace
}  // namespace trireme::offloaded_sums_test
