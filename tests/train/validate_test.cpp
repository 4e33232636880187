// `validate` on real runs of tiny models: all checks of a good run, and what a bad one fails.
#include "trireme/train/validate.h"

#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/measure/synthetic_tokens.h"

#include "tests/train/tiny_run.h"

namespace trireme::validate_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TinyRun;

const ValidateOptions kQuick{
    .sequence_tokens = 32, .steps = 12, .least_matmul_share = 0, .matmul_seconds = 0.01};

Validation validated(int ranks, const TrainOptions& options, const ValidateOptions& how = kQuick) {
  Validation result;
  std::mutex mutex;
  run_ranks_as_threads(ranks, [&](World& world) {
    const Validation of_rank = validate(world, options, how);
    const std::lock_guard<std::mutex> lock(mutex);
    if (world.rank() == ranks - 1) result = of_rank;
  });
  return result;
}

const Check& named(const Validation& validation, const std::string& name) {
  for (const Check& check : validation.checks)
    if (check.name.find(name) != std::string::npos) return check;
  throw InternalError("no check named " + name);
}

TEST(Validate, passes_a_good_run_on_two_ranks_and_leaves_no_checkpoint) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.engine.ulysses = 2;
  const Validation validation = validated(2, options);
  EXPECT_TRUE(validation.passed()) << validation.to_json().dump(1);
  ASSERT_EQ(validation.checks.size(), 6U);
  for (const Check& check : validation.checks) EXPECT_EQ(check.verdict, Verdict::pass) << check.name;
  const Json json = validation.to_json();
  EXPECT_EQ(json["checks"][2]["numbers"]["losses"].size(), 12U);
  EXPECT_TRUE(json["checks"][5]["numbers"]["passed"]);
  EXPECT_EQ(json["checks"][0]["numbers"]["ranks"].size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(options.output_dir / "metrics.jsonl"));
  EXPECT_TRUE(std::filesystem::is_empty(options.output_dir / "checkpoints"));
}

TEST(Validate, takes_its_steps_at_the_peak_of_the_longest_stage) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:60:1e-4,32:60:5";
  options.warmup_steps = 40;
  const Validation wild = validated(1, options);
  EXPECT_EQ(named(wild, "sane loss").numbers["peak_learning_rate"], 5);
  EXPECT_EQ(named(wild, "sane loss").verdict, Verdict::fail) << named(wild, "sane loss").reason;
}

TEST(Validate, finds_what_is_wrong_with_a_run) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  ValidateOptions how = kQuick;
  how.least_matmul_share = 1;
  options.engine.host_memory_limit_bytes = 1 << 20;
  options.engine.attention = AttentionKernel::reference;
  const Validation slow = validated(1, options, how);
  EXPECT_FALSE(slow.passed());
  EXPECT_EQ(named(slow, "throughput").verdict, Verdict::fail);
  EXPECT_THAT(named(slow, "throughput").reason, HasSubstr("Likely cause: "));
  EXPECT_EQ(named(slow, "memory").verdict, Verdict::fail);
  EXPECT_EQ(named(slow, "equal one").verdict, Verdict::not_done) << "there is one rank";

  options = run.options("overflowing");
  options.model_dir = run.overflowing_model();
  const Validation broken = validated(1, options);
  EXPECT_EQ(named(broken, "sane loss").verdict, Verdict::fail);
  EXPECT_THAT(named(broken, "sane loss").reason, AllOf(HasSubstr("optimizer step 1"), HasSubstr("loss")));
  EXPECT_EQ(named(broken, "throughput").verdict, Verdict::not_done);
}

TEST(StepsOfACaller, show_how_long_they_waited_for_data) {
  const TinyRun run;
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, run.model(), {});
    const MeasuredSteps slow{
        [](int64_t step) {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          return StepBatches{synthetic_batch(1, static_cast<uint64_t>(step), 1, 70, {16}, 0)};
        },
        [](int64_t /*step*/) { return 1e-3; }};
    const StepRate rate = measure_step_rate(*engine, {.steps = 3, .warmup = 1, .matmul_seconds = 0.01}, slow);
    EXPECT_GE(rate.data_seconds, 0.2);
    EXPECT_GE(rate.median_step_seconds, rate.data_seconds);
  });
}

}  // namespace
}  // namespace trireme::validate_test
