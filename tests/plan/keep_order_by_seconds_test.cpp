// The rule of what is kept first, against the planner's own seconds: the parts of a step of Llama 3 8B in the
// order of the seconds that each saves a byte.

#include <gtest/gtest.h>

#include "trireme/base/sum_of.h"
#include "trireme/forecast/keep_order.h"
#include "trireme/forecast/layer_buffers.h"
#include "trireme/plan/hardware_catalog.h"
#include "trireme/plan/step_time.h"

#include "tests/plan/llama_3_8b.h"

namespace trireme::keep_order_by_seconds_test {
namespace {

double kept_bytes(const PlannedStep& step) {
  return static_cast<double>(sum_of(kept_bytes_of_layers(step.inputs)));
}

// Seconds a byte that a part saves where all others are kept.
double seconds_a_byte(PlannedStep step, KeptPart part, const HardwareProfile& hardware) {
  const int64_t layers = step.inputs.model.layers;
  KeptLayers kept{layers, layers, layers};
  step.inputs.recompute = plan_keeping(kept, 1, layers);
  const double bytes = kept_bytes(step), seconds = step_time(step, hardware).seconds;
  kept[part] = 0;
  step.inputs.recompute = plan_keeping(kept, 1, layers);
  return (step_time(step, hardware).seconds - seconds) / (bytes - kept_bytes(step));
}

TEST(KeepOrder, is_that_of_the_seconds_that_the_planner_counts) {
  const HardwareProfile hardware = find_hardware("h100-80gb");
  for (const int64_t tokens : {1024, 2048, 8192, 32768, 131072})
    for (const int ulysses : {1, 8}) {
      PlannedStep step = testing::llama_step(tokens * ulysses, ulysses, ulysses, 0, Recompute::none);
      SCOPED_TRACE(::testing::Message() << tokens << " tokens a rank, ulysses " << ulysses);
      const std::vector<KeptPart> parts = KeepOrder(step.inputs).parts();
      ASSERT_EQ(parts.size(), 3);
      for (size_t i = 1; i < parts.size(); ++i) {
        const double before = seconds_a_byte(step, parts[i - 1], hardware),
                     after = seconds_a_byte(step, parts[i], hardware);
        EXPECT_GT(after, 0) << name_of(parts[i]);
        // Where two are worth about the same, either may come first.
        EXPECT_GT(before, 0.6 * after) << name_of(parts[i - 1]) << " before " << name_of(parts[i]);
      }
    }
}

}  // namespace
}  // namespace trireme::keep_order_by_seconds_test
