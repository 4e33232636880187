// Runs with steps that go wrong: what is skipped, stopped, rolled back, and what a good run does not hear of.
#include "trireme/train/step_guards.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/splitmix64.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/data/sample_order.h"
#include "trireme/train/check_options.h"

#include "tests/engine/bad_token_model.h"
#include "tests/support/error_message.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::step_guards_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::tensors_of;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

constexpr int64_t kTokens = 16, kRows = 100, kRowsOfStep = 2;

// A run whose step i, from 1, reads documents of `kind(i)`: each sample is one document.
class Guards : public ::testing::Test {
 protected:
  enum class Kind { easy, strange, bad_token };

  void write_documents(const std::function<Kind(int64_t step)>& kind_of) const {
    const SampleOrder order(kRows, static_cast<uint64_t>(TrainOptions{}.seed), 0);
    std::vector<std::vector<int32_t>> documents(kRows);
    for (int64_t i = 0; i < kRows; ++i) {
      const Kind kind = kind_of(i / kRowsOfStep + 1);
      std::vector<int32_t>& document = documents[static_cast<size_t>(order[i])];
      for (int64_t token = 0; token < kTokens; ++token)
        document.push_back(kind == Kind::strange
                               ? static_cast<int32_t>(splitmix64(static_cast<uint64_t>(i * 64 + token)) % 69)
                               : static_cast<int32_t>(token % 4));
      if (kind == Kind::bad_token) document[3] = testing::kBadToken;
    }
    IndexedDatasetWriter writer(run_.tokens(), 70);
    for (const auto& document : documents) writer.add_document(document);
    writer.finish();
  }
  TrainOptions options(const std::string& name) const {
    TrainOptions options = run_.options(name);
    options.samples.packing.kind = Packing::none;
    options.context_stages = "16:30";
    options.save_steps = 5;
    options.engine.ulysses = 2;
    return options;
  }
  TrainOptions watching(const std::string& name, OnSpike on_spike) const {
    TrainOptions watching = options(name);
    watching.guards.on_spike = on_spike;
    watching.guards.spike_window = 6;
    return watching;
  }
  static std::vector<int64_t> steps_in_metrics(const TrainOptions& options) {
    std::vector<int64_t> steps;
    for (const Json& record : testing::metrics_of(options))
      if (record.contains("loss")) steps.push_back(record["step"]);
    return steps;
  }

  TinyRun run_;
};

// ---- a loss that is not finite ----

class NonfiniteRun : public Guards {
 protected:
  NonfiniteRun() { testing::write_bad_token_model(run_.folder() / "bad"); }
  TrainOptions skipping(const std::string& name) const {
    TrainOptions skipping = options(name);
    skipping.model_dir = run_.folder() / "bad";
    skipping.learning_rate = 1e-12;
    skipping.guards.on_nonfinite = OnNonfinite::skip;
    return skipping;
  }
};

TEST_F(NonfiniteRun, skips_such_steps_counts_them_and_says_which_tensor) {
  write_documents([](int64_t step) { return step == 4 || step == 7 ? Kind::bad_token : Kind::easy; });
  const TinyOutcome run = train_on_ranks(2, skipping("run"));
  EXPECT_EQ(run.outcome.steps, 30);
  EXPECT_TRUE(std::isfinite(run.outcome.loss));
  for (const auto& [step, record] : run.records) {
    EXPECT_EQ(record.skipped, step == 4 || step == 7) << step;
    EXPECT_EQ(std::isfinite(record.loss), !record.skipped) << step;
    EXPECT_EQ(record.nonfinite_steps, step < 4 ? 0 : step < 7 ? 1 : 2) << step;
  }
  EXPECT_THAT(run.output, AllOf(HasSubstr("warning: step 4 was skipped and nothing was updated"),
                                HasSubstr("All weights are finite"), HasSubstr("(1 in a row, 10 at most)"),
                                Not(HasSubstr("2 in a row"))));
  const Json record = run.records.at(7).to_json();
  EXPECT_EQ(record["skipped"], true);
  EXPECT_EQ(record["nonfinite_steps"], 2);
  EXPECT_EQ(record.dump().find("nan"), std::string::npos) << "JSON has none";
}

TEST_F(NonfiniteRun, without_the_option_stops_at_the_first) {
  write_documents([](int64_t step) { return step == 4 ? Kind::bad_token : Kind::easy; });
  TrainOptions options = skipping("run");
  options.guards.on_nonfinite = OnNonfinite::stop;
  EXPECT_THAT(testing::problem_of<DataError>(options, 2), HasSubstr("stopped at step 4"));
}

// Also where the run was stopped and resumed among them.
TEST_F(NonfiniteRun, stops_after_ten_in_a_row) {
  write_documents([](int64_t step) { return step > 3 ? Kind::bad_token : Kind::easy; });
  TrainOptions options = skipping("run");
  EXPECT_TRUE(train_on_ranks(2, options, 8).outcome.stopped);
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(testing::problem_of<DataError>(options, 2),
              AllOf(HasSubstr("stopped at step 14"), HasSubstr("All weights are finite"),
                    HasSubstr("The 10 steps before were skipped")));
}

// ---- a loss that jumps ----

using SpikingRun = Guards;

bool in_first_spike(int64_t step) {
  return step >= 12 && step <= 14;
}

TEST_F(SpikingRun, that_is_told_to_warn_goes_on_with_the_same_numbers) {
  write_documents([](int64_t step) { return in_first_spike(step) ? Kind::strange : Kind::easy; });
  const TinyOutcome off = train_on_ranks(2, options("off")),
                    warned = train_on_ranks(2, watching("warned", OnSpike::warn));
  EXPECT_EQ(warned.losses, off.losses);
  EXPECT_THAT(off.output, Not(HasSubstr("spike")));
  EXPECT_THAT(warned.output,
              HasSubstr("warning: a spike of the loss: in steps 12 to 14 the loss was above 1.5 x "));
}

TEST_F(SpikingRun, that_is_told_to_stop_names_the_checkpoint_from_before_it) {
  write_documents([](int64_t step) { return in_first_spike(step) ? Kind::strange : Kind::easy; });
  TrainOptions options = watching("run", OnSpike::stop);
  options.save_steps = 4;  // step 12 is saved when the spike is suspected
  options.save_total_limit = 1;
  EXPECT_THAT(testing::problem_of<DataError>(options, 2),
              AllOf(HasSubstr("in steps 12 to 14"), HasSubstr("checkpoints/step-8: go on from it"),
                    HasSubstr("lower --learning_rate")));
  EXPECT_TRUE(fs::exists(options.output_dir / "checkpoints/step-8"))
      << "--save_total_limit keeps it meanwhile";
  options.output_dir = run_.folder() / "never-saved";
  options.save_steps = 20;
  EXPECT_THAT(testing::problem_of<DataError>(options, 2), HasSubstr("There is no checkpoint from before it"));
}

TEST_F(SpikingRun, judges_a_stage_by_its_own_steps) {
  write_documents([](int64_t) { return Kind::easy; });
  const fs::path other = run_.folder() / "other";
  IndexedDatasetWriter writer(other, 70);
  for (uint64_t i = 0; i < kRows; ++i) {
    std::vector<int32_t> document;
    for (uint64_t token = 0; token < 32; ++token)
      document.push_back(static_cast<int32_t>(splitmix64(i * 64 + token) % 69));
    writer.add_document(document);
  }
  writer.finish();
  for (const int64_t stop : {0, 15}) {
    TrainOptions options = watching(cat("run-", stop), OnSpike::stop);
    options.context_stages =
        cat(R"([{"max_seq_length": 16, "steps": 15}, {"max_seq_length": 32, "steps": 9, "train_file": ")",
            other.string(), R"("}])");
    TinyOutcome run = train_on_ranks(2, options, stop);
    const double before = run.losses.at(15);
    if (stop > 0) {
      options.resume_from_checkpoint = "true";
      run = train_on_ranks(2, options);
    }
    EXPECT_EQ(run.outcome.steps, 24);
    for (const int64_t step : {16, 17, 18}) EXPECT_GT(run.losses.at(step), 1.5 * before) << step;
  }
}

TEST_F(SpikingRun, that_learns_hears_nothing) {
  write_documents([](int64_t) { return Kind::easy; });
  const TinyOutcome plain = train_on_ranks(2, options("plain")),
                    guarded = train_on_ranks(2, watching("guarded", OnSpike::rollback));
  EXPECT_EQ(guarded.losses, plain.losses);
  EXPECT_EQ(tensors_of(guarded.outcome.checkpoint), tensors_of(plain.outcome.checkpoint));
  EXPECT_THAT(guarded.output, Not(HasSubstr("warning")));
}

TEST_F(SpikingRun, that_rolls_back_goes_on_from_the_checkpoint_past_the_data_at_half_the_rate) {
  write_documents([](int64_t step) { return in_first_spike(step) ? Kind::strange : Kind::easy; });
  const TinyOutcome plain = train_on_ranks(2, options("plain"));
  const TrainOptions rolling = watching("run", OnSpike::rollback);
  const TinyOutcome run = train_on_ranks(2, rolling);
  EXPECT_EQ(run.outcome.steps, 30);
  EXPECT_THAT(run.output, AllOf(HasSubstr("rolled back from step 14 to "), HasSubstr("checkpoints/step-10"),
                                HasSubstr("learning rates are multiplied by 0.5")));
  for (int64_t step = 1; step <= 30; ++step)
    EXPECT_EQ(run.records.at(step).learning_rate,
              plain.records.at(step).learning_rate * (step <= 10 ? 1 : 0.5))
        << step;
  // Step 11 reads what step 15 would have read.
  EXPECT_EQ(run.records.at(11).epoch, plain.records.at(15).epoch);
  for (int64_t step = 11; step <= 30; ++step) EXPECT_LT(run.losses.at(step), 1.5 * run.losses.at(10)) << step;
  EXPECT_EQ(run.records.at(30).tokens_seen, plain.records.at(30).tokens_seen);
  std::vector<int64_t> expected(30);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(steps_in_metrics(rolling), expected) << "one curve";
}

// The scale doubles after three steps without overflow, so that about every fourth step overflows.
TEST_F(SpikingRun, in_fp16_goes_back_in_its_schedule_by_the_steps_that_had_overflowed_until_then) {
  write_documents([](int64_t step) { return in_first_spike(step) ? Kind::strange : Kind::easy; });
  TrainOptions in_fp32 = options("plain"), rolling = watching("run", OnSpike::rollback);
  in_fp32.warmup_ratio = rolling.warmup_ratio = 0;  // fewer steps are to learn as much
  const TinyOutcome plain = train_on_ranks(2, in_fp32);
  rolling.engine.precision = Precision::fp16;
  rolling.engine.loss_scale = {.initial = std::exp2(20), .growth_steps = 3};
  const TinyOutcome run = train_on_ranks(2, rolling);
  EXPECT_THAT(run.output, AllOf(HasSubstr("rolled back from step 14 to "), HasSubstr("checkpoints/step-10")));
  int64_t overflowed = 0;
  for (const auto& [step, record] : run.records) {
    EXPECT_EQ(record.learning_rate,
              plain.records.at(step - overflowed).learning_rate * (step <= 10 ? 1 : 0.5))
        << step;
    if (record.skipped) ++overflowed;
  }
  EXPECT_GE(overflowed, 3);
}

TEST_F(SpikingRun, stopped_and_resumed_anywhere_rolls_back_alike) {
  write_documents([](int64_t step) { return in_first_spike(step) ? Kind::strange : Kind::easy; });
  const TinyOutcome whole = train_on_ranks(2, watching("whole", OnSpike::rollback));
  for (const int64_t stop : {9, 12, 13, 17}) {
    TrainOptions options = watching(cat("stopped-", stop), OnSpike::rollback);
    EXPECT_TRUE(train_on_ranks(2, options, stop).outcome.stopped);
    options.resume_from_checkpoint = "true";
    const TinyOutcome resumed = train_on_ranks(2, options);
    EXPECT_EQ(resumed.outcome.steps, 30);
    for (int64_t step = std::max<int64_t>(stop + 1, 15); step <= 30; ++step)
      EXPECT_EQ(resumed.losses.at(step), whole.losses.at(step)) << "stopped " << stop << ", step " << step;
    EXPECT_EQ(tensors_of(resumed.outcome.checkpoint), tensors_of(whole.outcome.checkpoint)) << stop;
    EXPECT_EQ(resumed.output.find("rolled back") == std::string::npos, stop == 17);
  }
}

TEST_F(SpikingRun, is_rolled_back_once_only) {
  write_documents([](int64_t step) {
    return in_first_spike(step) || (step >= 25 && step <= 28) ? Kind::strange : Kind::easy;
  });
  TrainOptions options = watching("run", OnSpike::rollback);
  EXPECT_TRUE(train_on_ranks(2, options, 17).outcome.stopped);
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(testing::problem_of<DataError>(options, 2),
              AllOf(HasSubstr("rolled back once already"), HasSubstr("checkpoints/step-20"),
                    HasSubstr("lower --learning_rate")));
}

TEST(GuardOptions, that_cannot_be_done_are_refused) {
  TrainOptions options;
  options.guards.on_nonfinite = OnNonfinite::skip;
  options.engine.update_in_backward = true;
  EXPECT_THAT(message_of<ConfigError>([&] { check_options(options); }), HasSubstr("--on_nonfinite skip"));
  options = {};
  options.guards.on_spike = OnSpike::rollback;
  options.save_steps = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { check_options(options); }), HasSubstr("--save_steps N"));
  options.save_steps = 10;
  EXPECT_EQ(message_of<ConfigError>([&] { check_options(options); }), "no error");
  options.save_minutes = 60;
  EXPECT_THAT(message_of<ConfigError>([&] { check_options(options); }), HasSubstr("--save_minutes 60"));
  options.guards.on_spike = OnSpike::stop;
  EXPECT_EQ(message_of<ConfigError>([&] { check_options(options); }), "no error");
}

}  // namespace
}  // namespace trireme::step_guards_test
