// Held-out samples that cannot be evaluated cost no steps: whole runs, in threads.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/train/run_directory.h"

#include "tests/support/error_message.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::held_out_samples_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::problem_of;
using testing::saved_steps;
using testing::TinyRun;
using testing::train_on_ranks;

// Five samples of 16 tokens, and a last one whose ids no model here has.
fs::path foreign_at_the_end(const TinyRun& run) {
  fs::path prefix = run.folder() / "foreign";
  IndexedDatasetWriter writer(prefix, 60'000);
  writer.add_document(std::vector<int32_t>(81, 3));
  writer.add_document(std::vector<int32_t>(16, 50'000));
  writer.finish();
  return prefix;
}

TEST(HeldOutSamples, of_another_vocabulary_are_refused_before_the_first_step) {
  const TinyRun run;
  for (const int ranks : {1, 2}) {
    TrainOptions options = run.options(cat("run-", ranks));
    options.context_stages = "16:3";
    options.eval_file = foreign_at_the_end(run);
    EXPECT_THAT(problem_of<DataError>(options, ranks), HasSubstr("50000"));
    EXPECT_FALSE(fs::exists(RunDirectory(options.output_dir).metrics())) << "a step was taken";
    options.max_eval_samples = 4;  // nothing else is read
    EXPECT_EQ(train_on_ranks(ranks, options).outcome.steps, 3);
  }
}

TEST(HeldOutSamples, of_an_encoder_are_looked_at_as_they_are_evaluated) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.model_dir = run.folder() / "encoder";
  testing::write_tiny_model(options.model_dir, testing::tiny_bert_config());
  options.context_stages = "16:3";
  options.samples.packing.kind = Packing::best_fit;
  options.samples.mask_token_id = 5;
  options.samples.mlm_probability = 1;
  options.eval_file = run.folder() / "words";
  IndexedDatasetWriter writer(options.eval_file, 64);
  for (const int32_t token : {7, 8, 9}) writer.add_document(std::vector<int32_t>{token});
  writer.finish();
  EXPECT_THAT(train_on_ranks(1, options).output,
              AllOf(HasSubstr("step 3  held-out loss"), HasSubstr(" at length 16 (1 sample)")));
}

TEST(HeldOutSamples, that_cannot_be_read_any_more_cost_one_rank_no_steps) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:3";
  options.eval_file = run.folder() / "held-out";
  for (const char* ending : {".bin", ".idx"})
    fs::copy_file(run.tokens().string() + ending, options.eval_file.string() + ending);
  const auto cut_in_the_last_step = [&](World& world) {
    TrainHooks hooks;
    hooks.on_step = [&](const StepRecord& record) {
      if (record.step == 3) fs::resize_file(options.eval_file.string() + ".bin", 64);
    };
    train(world, options, hooks);
  };
  EXPECT_THAT(message_of<DataError>([&] { run_ranks_as_threads(1, cut_in_the_last_step); }),
              HasSubstr("held-out.bin"));
  EXPECT_THAT(saved_steps(options), ElementsAre(3));
  fs::copy_file(run.tokens().string() + ".bin", options.eval_file.string() + ".bin",
                fs::copy_options::overwrite_existing);
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(train_on_ranks(1, options).output, HasSubstr("step 3  held-out loss"));
}

}  // namespace
}  // namespace trireme::held_out_samples_test
