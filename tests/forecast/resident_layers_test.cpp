// As few layers' activations stay on the device as the host's memory demands: against every number of them.
#include "trireme/forecast/resident_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/forecast/llama_3_8b.h"

namespace trireme::resident_layers_test {
namespace {

constexpr int64_t kLeast = ResidentLayers{}.resident_layers, kMuch_bytes = int64_t{1} << 42;

ForecastInputs offloading(RecomputePlan plan, int64_t resident_layers = kLeast) {
  ForecastInputs inputs = testing::llama_3_8b(int64_t{1} << 20);
  inputs.recompute = plan;
  inputs.offload.activations = Offload::cpu;
  inputs.resident_layers = resident_layers;
  return inputs;
}

std::vector<RecomputePlan> plans() {
  using enum Recompute;
  constexpr int64_t kLayers = testing::kLayers;
  return {{full, 1, 1, kLayers},
          {keep_attention, 1, 1, kLayers},
          {keep_attention, 1, 0.25, kLayers},
          {full, 3, 1, kLayers},
          {keep_attention, 4, 0.5, kLayers}};
}

TEST(ResidentLayers, are_the_fewest_with_which_the_host_has_room) {
  for (const RecomputePlan& plan : plans()) {
    SCOPED_TRACE(plan.description());
    int64_t most = kLeast;
    for (int64_t resident = kLeast; resident <= testing::kLayers; ++resident) {
      const int64_t host_bytes = memory_forecast(offloading(plan, resident)).host.total();
      if (resident > kLeast && host_bytes == memory_forecast(offloading(plan, resident - 1)).host.total())
        break;  // no more layers keep anything
      most = resident;
      ForecastInputs inputs = offloading(plan);
      const MemoryForecast forecast = forecast_within(inputs, kMuch_bytes, host_bytes);
      EXPECT_EQ(inputs, offloading(plan, resident));
      EXPECT_LE(forecast.host.total(), host_bytes);
      EXPECT_EQ(forecast.peak_total_bytes, memory_forecast(inputs).peak_total_bytes);
      forecast_within(inputs, kMuch_bytes, host_bytes - 1);
      EXPECT_EQ(inputs.resident_layers, host_bytes == 0 ? kLeast : resident + 1);
    }
    EXPECT_GT(most, kLeast + 3);
    EXPECT_EQ(memory_forecast(offloading(plan, most)).host.total(), 0) << "all stay";
  }
}

TEST(ResidentLayers, hold_on_the_device_what_the_host_does_not) {
  for (const RecomputePlan& plan : plans()) {
    SCOPED_TRACE(plan.description());
    const MemoryForecast least = memory_forecast(offloading(plan)),
                         more = memory_forecast(offloading(plan, 7));
    const int64_t moved = least.host.total() - more.host.total();
    EXPECT_GT(moved, 0);
    using enum MemoryCategory;
    // Where layers differ, or a group runs again, the fullest moment is another one.
    EXPECT_LE(more.peak[activations], least.peak[activations] + moved);
    if (plan.checkpoint_every == 1 && plan.keep_fraction == 1) {
      EXPECT_EQ(more.peak[activations], least.peak[activations] + moved);
    }
  }
}

TEST(ResidentLayers, are_two_where_the_device_has_no_room_for_more_or_nothing_goes_to_the_host) {
  const RecomputePlan plan = plans().front();
  const int64_t host_bytes = memory_forecast(offloading(plan, 5)).host.total();
  const int64_t device_bytes = memory_forecast(offloading(plan, 5)).peak_total_bytes;
  const auto resident_of = [&](ForecastInputs inputs, int64_t device, int64_t host) {
    forecast_within(inputs, device, host);
    return inputs.resident_layers;
  };
  EXPECT_EQ(resident_of(offloading(plan), device_bytes, host_bytes), 5);
  EXPECT_EQ(resident_of(offloading(plan), device_bytes - 1, host_bytes), kLeast);
  EXPECT_EQ(resident_of(offloading(plan, 9), device_bytes, kMuch_bytes), kLeast) << "whatever it was before";
  ForecastInputs other = offloading(plan);
  other.offload.activations = Offload::disk;
  EXPECT_EQ(resident_of(other, kMuch_bytes, 1), kLeast);
  other.offload.activations = Offload::none;
  EXPECT_EQ(resident_of(other, kMuch_bytes, 0), kLeast);
  other = offloading(plan);
  other.offload.optimizer = Offload::cpu;
  EXPECT_EQ(resident_of(other, kMuch_bytes, 1), kLeast) << "moments alone are more than the host holds";
}

TEST(ResidentLayers, are_told) {
  EXPECT_EQ(text_of_resident_layers(offloading(plans().front())), "");
  EXPECT_EQ(text_of_resident_layers(offloading(plans().front(), 7)), " but those of the last 7 layers");
}

}  // namespace
}  // namespace trireme::resident_layers_test
