// --recompute auto in a training run: what is told, what is recorded, and that machines with other memory go
// on bitwise.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/forecast/keep_order.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/train/run_directory.h"

#include "tests/train/tiny_run.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::tensors_of;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

// What the formulas expect of a step with the longest stage of TinyRun at each position of the keep order,
// and how the plan is told.
struct Positions {
  std::vector<int64_t> bytes;
  std::vector<std::string> plans;
};
Positions expected_positions(const TrainOptions& options, int64_t tokens = 32, int64_t document_tokens = 0) {
  Positions positions;
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, options.model_dir, options.engine);
    ForecastInputs inputs = engine->forecast_inputs(options.per_device_train_batch_size, tokens);
    inputs.document_tokens = document_tokens;
    const KeepOrder order(inputs);
    for (int64_t position = 0; position <= order.last_position(); ++position) {
      inputs.recompute = plan_keeping(order.at(position), 1, 2);
      positions.bytes.push_back(memory_forecast(inputs).peak_total_bytes);
      positions.plans.push_back("recompute " + inputs.recompute.description());
    }
  });
  return positions;
}

TEST(ChosenRecompute, plans_with_the_longest_stage_and_is_told_and_recorded_as_asked) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.memory_report = true;
  const Positions positions = expected_positions(options);
  ASSERT_LT(positions.bytes[1], positions.bytes[2]);
  options.engine.memory_budget_bytes = positions.bytes[2] - 1;
  const TinyOutcome told = train_on_ranks(1, options);
  EXPECT_THAT(told.output,
              AllOf(HasSubstr(positions.plans[1] + ", chosen: "),
                    HasSubstr("at length 16, " + positions.plans[1] + "\n"), Not(HasSubstr("warning"))));
  const Json config = Json::parse(std::ifstream(RunDirectory(options.output_dir).config()));
  EXPECT_EQ(config.at("recompute"), "auto");
  EXPECT_EQ(config.at("memory_budget"), positions.bytes[2] - 1);
  EXPECT_EQ(config.at("keep_fraction"), 1);
  EXPECT_EQ(config.at("keep_qkv_fraction"), 0);
  EXPECT_EQ(config.at("keep_mlp_fraction"), 0);
}

// TinyRun's documents have 37 tokens.
TEST(ChosenRecompute, of_packed_samples_attention_counts_as_what_their_documents_see) {
  const TinyRun run(5000);
  TrainOptions options = run.options("run");
  options.context_stages = "512:1";
  options.warmup_ratio = 0;
  for (const auto& [packing, document_tokens, kept] :
       {std::tuple{Packing::concat, 512, "recompute keep_attention on 1 of 2 layers"},
        {Packing::documents, 37, "recompute keep_attention on 0, qkv on 1, mlp on 0 of 2 layers"}}) {
    options.samples.packing.kind = packing;
    options.engine.memory_budget_bytes = 0;
    const Positions positions = expected_positions(options, 512, document_tokens);
    ASSERT_EQ(positions.plans[1], kept);
    options.engine.memory_budget_bytes = (positions.bytes[1] + positions.bytes[2]) / 2;
    options.overwrite_output_dir = true;
    EXPECT_THAT(train_on_ranks(1, options).output, HasSubstr(cat(kept, ", chosen: ")));
  }
}

TEST(ChosenRecompute, resumes_bitwise_with_more_or_less_memory) {
  const TinyRun run(170);
  const Positions positions = expected_positions(run.options("none"));
  const size_t last = positions.bytes.size() - 1;
  ASSERT_LT(positions.bytes[last - 1], positions.bytes[last]);
  TrainOptions whole = run.options("whole");
  whole.engine.recompute.policy = Recompute::full;
  const auto expected = tensors_of(train_on_ranks(1, whole).outcome.checkpoint);
  TrainOptions options = run.options("moved");
  options.engine.memory_budget_bytes = positions.bytes[last];
  EXPECT_THAT(train_on_ranks(1, options, 3).output, HasSubstr("recompute none, chosen: "));
  options.resume_from_checkpoint = "true";
  options.engine.memory_budget_bytes = positions.bytes[last] - 1;
  EXPECT_THAT(train_on_ranks(1, options, 6).output,
              AllOf(HasSubstr(positions.plans[last - 1] + ", chosen: "), HasSubstr("resumed at step 3"),
                    Not(HasSubstr("changed option"))));
  options.engine.memory_budget_bytes = positions.bytes[0] - 1;
  const TinyOutcome least = train_on_ranks(1, options);
  EXPECT_THAT(least.output, HasSubstr("recompute full, chosen"));
  EXPECT_EQ(least.outcome.steps, 9);
  EXPECT_EQ(tensors_of(least.outcome.checkpoint), expected);
}

TEST(ChosenRecompute, warns_once_with_what_would_help_where_nothing_fits_and_trains) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.engine.memory_budget_bytes = 1000;
  const TinyOutcome told = train_on_ranks(1, options);
  EXPECT_EQ(told.outcome.steps, 9);
  const std::string warning = "warning: by the memory formulas a rank comes to ";
  const size_t first = told.output.find(warning);
  ASSERT_NE(first, std::string::npos) << told.output;
  EXPECT_EQ(told.output.find(warning, first + 1), std::string::npos);
  EXPECT_THAT(told.output.substr(first),
              AllOf(HasSubstr("1000 B can be planned with"), HasSubstr("(saves about ")));
}

TEST(ChosenRecompute, a_fraction_beside_auto_is_refused_before_an_earlier_run_is_touched) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.engine.recompute.keep_fraction = 0.5;
  EXPECT_THAT(testing::problem_of(options), HasSubstr("--recompute keep_attention with it"));
  EXPECT_FALSE(std::filesystem::exists(options.output_dir));
}

}  // namespace
}  // namespace trireme
