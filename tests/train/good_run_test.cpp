// No guard says anything, or does anything, in a run where nothing is wrong (docs/guards.md): 200 steps, of
// two stages, on two ranks.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace trireme::good_run_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Guards, are_silent_in_a_good_run_of_200_steps) {
  const testing::TinyRun run;
  TrainOptions options =
      run.with_text("run", "", testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json");
  options.train_file = run.folder() / "lines.jsonl";
  std::ofstream lines(options.train_file);
  for (int i = 0; i < 400; ++i) {
    lines << R"({"text": "Line)";
    for (int j = 0; j < 8; ++j) lines << " word" << (i * i * j + 7 * i + j) % 97;
    lines << R"( ends."})"
          << "\n";
  }
  lines.close();
  options.samples.corpus.on_bad_record = OnBadRecord::skip;
  options.guards = {.on_nonfinite = OnNonfinite::skip, .on_spike = OnSpike::rollback, .spike_window = 20};
  options.context_stages = "32:150,64:50";
  options.save_steps = 50;
  options.learning_rate = 3e-3;
  options.engine.ulysses = 2;
  const testing::TinyOutcome good = testing::train_on_ranks(2, options);
  EXPECT_EQ(good.outcome.steps, 200);
  ASSERT_EQ(good.records.size(), 200U);
  for (const auto& [step, record] : good.records) {
    EXPECT_FALSE(record.skipped) << step;
    EXPECT_EQ(record.nonfinite_steps, 0) << step;
  }
  EXPECT_LT(good.losses.at(200), 0.8 * good.losses.at(1)) << "it learned";
  for (const char* text : {"warning", "skipped", "left out", "spike", "rolled back", "differ"})
    EXPECT_THAT(good.output, Not(HasSubstr(text)));
  EXPECT_THAT(good.output, HasSubstr("saved "));
}

}  // namespace
}  // namespace trireme::good_run_test
