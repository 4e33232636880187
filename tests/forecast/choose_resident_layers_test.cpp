// As few layers' activations stay on the device as the host's memory demands: against every number of them.
#include "trireme/forecast/choose_resident_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/forecast/memory_options.h"

#include "tests/forecast/llama_3_8b.h"

namespace trireme::choose_resident_layers_test {
namespace {

constexpr int64_t kLeast = ResidentLayers{}.resident_layers, kMuch_bytes = int64_t{1} << 42;

ForecastInputs offloading(RecomputePlan plan, int64_t resident_layers = kLeast) {
  ForecastInputs inputs = forecast_test::llama_3_8b(int64_t{1} << 20);
  inputs.recompute = plan;
  inputs.offload.activations = Offload::cpu;
  inputs.resident_layers = resident_layers;
  return inputs;
}

std::vector<RecomputePlan> plans() {
  using enum Recompute;
  constexpr int64_t kLayers = forecast_test::kLayers;
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
    for (int64_t resident = kLeast; resident <= forecast_test::kLayers; ++resident) {
      const int64_t host_bytes = memory_forecast(offloading(plan, resident)).host.total();
      if (resident > kLeast && host_bytes == memory_forecast(offloading(plan, resident - 1)).host.total())
        break;  // no more layers keep anything
      most = resident;
      ForecastInputs inputs = offloading(plan);
      const MemoryForecast forecast = choose_resident_layers(inputs, kMuch_bytes, host_bytes);
      EXPECT_EQ(inputs, offloading(plan, resident));
      EXPECT_LE(forecast.host.total(), host_bytes);
      EXPECT_EQ(forecast.peak_total_bytes, memory_forecast(inputs).peak_total_bytes);
      choose_resident_layers(inputs, kMuch_bytes, host_bytes - 1);
      EXPECT_EQ(inputs.resident_layers, host_bytes == 0 ? resident : resident + 1);
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

// The peak of plans with groups, or with layers that keep less, grows by less than what stays.
TEST(ResidentLayers, are_as_many_as_the_device_has_room_for_where_both_lack_some) {
  constexpr int64_t kForTheHost = 9;
  for (const RecomputePlan& plan : plans()) {
    SCOPED_TRACE(plan.description());
    const auto peak_of = [&](int64_t resident) {
      return memory_forecast(offloading(plan, resident)).peak_total_bytes;
    };
    const int64_t host_bytes = memory_forecast(offloading(plan, kForTheHost)).host.total();
    for (int64_t resident = kLeast; resident <= kForTheHost; ++resident)
      for (const int64_t less : {0, 1}) {
        ForecastInputs inputs = offloading(plan);
        const int64_t device_bytes = peak_of(resident) - less;
        const MemoryForecast forecast = choose_resident_layers(inputs, device_bytes, host_bytes);
        int64_t expected = kLeast;
        for (int64_t more = kLeast; more <= kForTheHost; ++more)
          if (peak_of(more) <= device_bytes) expected = more;
        EXPECT_EQ(inputs, offloading(plan, expected)) << resident << ", less " << less;
        EXPECT_EQ(forecast.peak_total_bytes, peak_of(expected));
        EXPECT_EQ(forecast.host.total() > host_bytes, expected < kForTheHost);
      }
  }
}

TEST(ResidentLayers, are_two_where_the_host_has_room_or_nothing_goes_there) {
  const RecomputePlan plan = plans().front();
  const auto resident_of = [](ForecastInputs inputs, int64_t host_bytes) {
    choose_resident_layers(inputs, kMuch_bytes, host_bytes);
    return inputs.resident_layers;
  };
  EXPECT_EQ(resident_of(offloading(plan, 9), kMuch_bytes), kLeast) << "whatever it was before";
  ForecastInputs other = offloading(plan);
  other.offload.activations = Offload::disk;
  EXPECT_EQ(resident_of(other, 1), kLeast);
  other.offload.activations = Offload::none;
  EXPECT_EQ(resident_of(other, 0), kLeast);
}

TEST(ResidentLayers, are_chosen_anew_for_what_memory_options_propose) {
  const ForecastInputs inputs = offloading({Recompute::keep_attention, 1, 1, forecast_test::kLayers}, 9);
  const auto saved_share = [](const ForecastInputs& of, const std::string& name) {
    for (const MemoryOption& option : memory_options(of))
      if (option.option == name && option.category == MemoryCategory::activations &&
          option.space == MemorySpace::device)
        return option.saved_share;
    return 0.0;
  };
  EXPECT_GT(saved_share(inputs, "--offload_activations disk"), 0.5);
}

TEST(ResidentLayers, are_told) {
  EXPECT_EQ(text_of_resident_layers(offloading(plans().front())), "");
  EXPECT_EQ(text_of_resident_layers(offloading(plans().front(), 7)), " but those of the last 7 layers");
  EXPECT_EQ(text_of_resident_layers(offloading({Recompute::full, 2, 1, forecast_test::kLayers}, 7)),
            " but those of the last 7 layers that keep any");
}

}  // namespace
}  // namespace trireme::choose_resident_layers_test
