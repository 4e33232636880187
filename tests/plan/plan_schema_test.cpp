// docs/schemas/plan.schema.json is the form of plan_json, and memory_changes.schema.json that of the answer
// to an out-of-memory error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/hardware_catalog.h"
#include "trireme/plan/memory_answer_json.h"
#include "trireme/plan/plan_json.h"

#include "tests/plan/json_schema.h"
#include "tests/plan/llama_3_8b.h"
#include "tests/plan/small_request.h"
#include "tests/support/source_folder.h"

namespace trireme::plan_schema_test {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using testing::small_request;
using ::testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;

const testing::JsonSchema& schema() {
  static const testing::JsonSchema the_schema(testing::source_folder() / "docs/schemas/plan.schema.json");
  return the_schema;
}

PlanRequest full_request() {
  PlanRequest request = small_request(4, 32768, 220 * kMiB);
  request.hardware.sources = find_hardware("h100-80gb").sources;
  request.token_budget = 1 << 30;
  request.target_tokens_per_second = 1;
  return request;
}

TEST(PlanSchema, describes_plans_that_fit_that_do_not_and_stages) {
  const PlanRequest full = full_request();
  EXPECT_THAT(schema().faults(plan_json(full, make_plan(full))), IsEmpty());
  const PlanRequest over = small_request(1, 1 << 20, 100 * kMiB);
  EXPECT_THAT(schema().faults(plan_json(over, make_plan(over))), IsEmpty());
  PlanRequest longest = small_request(2, 0, 100 * kMiB, /*is_gpu=*/false);
  longest.objective = Objective::length;
  EXPECT_THAT(schema().faults(plan_json(longest, make_plan(longest))), IsEmpty());
  for (const Plan& stage : plan_stages(full, {8192, 16384}))
    EXPECT_THAT(schema().faults(plan_json(full, stage)), IsEmpty());
}

TEST(PlanSchema, tells_what_is_missing_new_or_of_another_type) {
  const PlanRequest request = full_request();
  const Json plan = plan_json(request, make_plan(request));
  const auto faults = [&](const char* pointer, const std::function<void(Json&)>& change) {
    Json changed = plan;
    change(changed[Json::json_pointer(pointer)]);
    return schema().faults(changed);
  };
  EXPECT_THAT(faults("/best/memory", [](Json& json) { json.erase("device_bytes"); }),
              Contains(StartsWith("/best/memory: lacks device_bytes")));
  EXPECT_THAT(faults("/best/time", [](Json& json) { json["new"] = 1; }),
              Contains(StartsWith("/best/time/new: is not")));
  EXPECT_THAT(faults("/frontier/0/tokens", [](Json& json) { json = 1.5; }),
              Contains(StartsWith("/frontier/0/tokens: expected")));
  EXPECT_THAT(faults("/objective", [](Json& json) { json = "fast"; }),
              Contains(StartsWith("/objective: expected one of")));
  EXPECT_THAT(faults("/format", [](Json& json) { json = "trireme plan 2"; }),
              Contains(StartsWith("/format: expected")));
}

TEST(MemoryChangesSchema, describes_answers_with_sets_without_and_with_a_message) {
  const testing::JsonSchema form(testing::source_folder() / "docs/schemas/memory_changes.schema.json");
  const auto answer = [](int64_t tokens, int64_t device_bytes, const std::string& message) {
    std::optional<MemoryError> error;
    if (!message.empty()) error = read_memory_error(message, "message");
    const PlannedStep step = testing::llama_step(tokens, 4, 8, 1, Recompute::keep_attention);
    const HardwareProfile hardware = testing::gpu_80gb();
    return explain_memory(step, hardware, testing::limits_of(step, hardware, device_bytes), error);
  };
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
      "79.11 GiB of "
      "which 1.02 GiB is free. Of the allocated memory 61.20 GiB is allocated by PyTorch, and 16.10 GiB is "
      "reserved by "
      "PyTorch but unallocated.";
  const MemoryAnswer sets = answer(262144, testing::kGpuLimit_bytes, message);
  EXPECT_FALSE(sets.changes.sets.empty());
  EXPECT_FALSE(sets.causes.empty());
  EXPECT_THAT(form.faults(to_json(sets)), IsEmpty());
  const MemoryAnswer fits = answer(8192, testing::kGpuLimit_bytes, "");
  EXPECT_TRUE(fits.changes.fits());
  EXPECT_THAT(form.faults(to_json(fits)), IsEmpty());
  const MemoryAnswer nothing = answer(1 << 24, int64_t{1} << 30, "");
  EXPECT_TRUE(nothing.changes.sets.empty());
  EXPECT_THAT(form.faults(to_json(nothing)), IsEmpty());
}

}  // namespace
}  // namespace trireme::plan_schema_test
