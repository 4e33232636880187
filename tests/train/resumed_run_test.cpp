// What a run goes on from, and what it may not go on with: whole runs, in threads.
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/train/run_directory.h"

#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::problem_of;
using testing::saved_steps;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

// Of one length, in the place of stages.
TrainOptions options_of_steps(const TinyRun& run, int64_t steps) {
  TrainOptions options = run.options("run");
  options.context_stages.clear();
  options.samples.max_seq_length = 16;
  options.max_steps = steps;
  return options;
}

fs::path tokenizer() {
  return testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json";
}

std::string some_text(int seed) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += cat("word", (i * i + seed) % 97, i % 9 == 0 ? "\n" : " ");
  return text;
}

RankIdentity attempt(const std::string& number, const std::string& launch) {
  RankIdentity identity;
  identity.attempt = number;
  identity.launch_id = launch;
  identity.launch_is_guessed = launch.starts_with("agent");
  return identity;
}

TEST(ResumedRun, never_trains_on_the_tokens_of_another_text) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", some_text(1), tokenizer());
  train_on_ranks(2, options, 3);
  options.resume_from_checkpoint = "true";
  std::ofstream(run.text(), std::ios::app) << " one word more";
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr(run.text().string()), HasSubstr("content"),
                                         HasSubstr("bytes"), HasSubstr("--resume_with_new_data")));
  std::ofstream(run.text()) << some_text(1);
  options.samples.corpus.append_end_of_text = false;
  EXPECT_THAT(problem_of(options), HasSubstr("append_eos true -> false"));
  options.samples.corpus.append_end_of_text = true;
  options.train_file = run.tokens();
  EXPECT_THAT(problem_of(options), HasSubstr("kind \"text\" -> \"tokenized set\""));
  options.train_file = run.text();
  EXPECT_EQ(train_on_ranks(2, options).outcome.steps, 9);
}

TEST(ResumedRun, never_trains_on_another_field_of_its_text_or_the_tokens_of_another_tokenizer) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", "", tokenizer());
  options.train_file = run.folder() / "lines.jsonl";
  std::ofstream(options.train_file) << Json{{"text", some_text(1)}, {"body", some_text(2)}}.dump();
  train_on_ranks(1, options, 3);
  options.resume_from_checkpoint = "true";
  options.samples.corpus.field = "body";
  EXPECT_THAT(problem_of(options), HasSubstr("text_field \"text\" -> \"body\""));
  options.samples.corpus.field = "text";
  const fs::path file = run.model() / "tokenizer.json";
  Json edited = read_json(file);
  std::swap(edited["model"]["vocab"]["a"], edited["model"]["vocab"]["b"]);
  std::ofstream(file) << edited.dump();
  EXPECT_THAT(problem_of(options), HasSubstr(": tokenizer \""));
}

TEST(ResumedRun, goes_on_with_new_data_from_its_beginning_where_it_is_asked_to) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", some_text(1), tokenizer());
  const TinyOutcome first = train_on_ranks(1, options, 3);
  std::ofstream(run.text()) << some_text(50);
  options.resume_from_checkpoint = "true";
  options.resume_with_new_data = true;
  const TinyOutcome second = train_on_ranks(1, options, 4);
  EXPECT_THAT(second.output, AllOf(HasSubstr("the data begins anew"), HasSubstr("resumed at step 3")));
  EXPECT_LT(second.records.at(4).epoch, first.records.at(3).epoch);
  EXPECT_GT(second.records.at(4).tokens_seen, first.records.at(3).tokens_seen);
  // What it saved is of the new data: from there it goes on where it was.
  const TinyOutcome third = train_on_ranks(1, options);
  EXPECT_THAT(third.output, Not(HasSubstr("begins anew")));
  EXPECT_GT(third.records.at(5).epoch, second.records.at(4).epoch);
}

// As many bytes as before, and a time that nobody looks at by the clock.
TEST(ResumedRun, sees_a_text_that_was_changed_under_its_name_and_size) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", some_text(1), tokenizer());
  const auto hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(run.text(), hour_ago);
  train_on_ranks(1, options, 2);
  EXPECT_TRUE(fs::exists(RunDirectory(options.output_dir).sources()));
  std::string text = some_text(1);
  text[7] = text[7] == 'x' ? 'y' : 'x';
  std::ofstream(run.text(), std::ios::binary) << text;
  fs::last_write_time(run.text(), hour_ago + std::chrono::nanoseconds(1000));
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(problem_of(options), HasSubstr("content \""));
}

TEST(ResumedRun, goes_on_without_the_text_by_the_tokens_that_were_made_of_it) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", some_text(1), tokenizer());
  const fs::path eval_text = run.folder() / "eval.txt";
  std::ofstream(eval_text) << some_text(2);
  options.eval_file = eval_text;
  train_on_ranks(2, options, 3);
  fs::remove(run.text());
  fs::remove(eval_text);
  const TrainOptions fresh = options;
  options.resume_from_checkpoint = "true";
  const TinyOutcome resumed = train_on_ranks(2, options, 5);
  EXPECT_THAT(resumed.output, AllOf(HasSubstr(cat("the text ", run.text().string(), " is gone")),
                                    HasSubstr(cat("the text ", eval_text.string(), " is gone"))));
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 9) << "as often as it is started";
  // Tokens made with another setting would be others, and so is a text under another name.
  TrainOptions other = options;
  other.samples.corpus.append_end_of_text = false;
  EXPECT_THAT(problem_of(other), HasSubstr("there is no file"));
  other = options;
  other.train_file = run.folder() / "another.txt";
  EXPECT_THAT(problem_of(other, 2),
              ::testing::AnyOf(HasSubstr("there is no file"), HasSubstr("rank 0 failed")));
  // What the folder of a fresh run holds is not asked.
  for (const bool overwrite : {false, true}) {
    other = fresh;
    other.overwrite_output_dir = overwrite;
    if (!overwrite) other.output_dir = run.folder() / "new";
    EXPECT_THAT(problem_of(other), HasSubstr("there is no file"));
  }
}

TEST(ResumedRun, without_the_text_needs_the_tokens_whole) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", some_text(1), tokenizer());
  train_on_ranks(1, options, 3);
  fs::remove(run.text());
  options.resume_from_checkpoint = "true";
  for (const auto& entry : fs::directory_iterator(RunDirectory(options.output_dir).data()))
    if (entry.path().extension() == ".bin") fs::resize_file(entry.path(), fs::file_size(entry.path()) - 2);
  EXPECT_THAT([&] { train_on_ranks(1, options); },
              ::testing::ThrowsMessage<DataError>(AllOf(HasSubstr("is gone"), HasSubstr(".bin"))));
  for (const auto& entry : fs::directory_iterator(RunDirectory(options.output_dir).data()))
    if (entry.path().extension() == ".idx") fs::remove(entry.path());
  EXPECT_THAT(problem_of(options), HasSubstr("there is no file"));
}

TEST(ResumedRun, sees_a_tokenized_set_that_was_made_anew_under_its_name) {
  const TinyRun run(170);
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 2);
  // Of the same length: another token in the middle.
  const fs::path bin = indexed_dataset_bin(run.tokens());
  std::string bytes = testing::bytes_of(bin);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(bin, std::ios::binary) << bytes;
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr(run.tokens().string()), HasSubstr("tokens \"")));
}

TEST(ResumedRun, of_a_finished_run_says_that_nothing_is_left_and_how_to_train_on) {
  const TinyRun run;
  TrainOptions options = options_of_steps(run, 2);
  train_on_ranks(1, options);
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(train_on_ranks(1, options).output,
              HasSubstr("all 2 steps are done; to train on give more --max_steps"));
}

TEST(ResumedRun, without_one_file_of_its_set_names_it) {
  const TinyRun run;
  fs::remove(indexed_dataset_idx(run.tokens()));
  EXPECT_THAT(problem_of(run.options("run")),
              HasSubstr(cat("lacks ", indexed_dataset_idx(run.tokens()).string())));
}

Json record_with(const TrainOptions& options, const std::string& key) {
  for (const Json& record : testing::metrics_of(options))
    if (record.contains(key)) return record;
  return nullptr;
}

TEST(ResumedRun, tells_what_each_rank_read_of_the_checkpoint) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 3);
  int64_t checkpoint_bytes = 0, tensor_bytes = 0;
  for (const auto& entry : fs::directory_iterator(RunDirectory(options.output_dir).checkpoint(3))) {
    if (entry.path().filename() == "manifest.json") continue;
    checkpoint_bytes += static_cast<int64_t>(entry.file_size());
    if (entry.path().extension() == ".safetensors") tensor_bytes += static_cast<int64_t>(entry.file_size());
  }
  const auto first = record_with(options, "weights_read_bytes_of_ranks");
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["weights_read_bytes_of_ranks"].get<std::vector<uint64_t>>(),
            std::vector<uint64_t>{fs::file_size(run.model() / "model.safetensors")});
  // The model's weights are not read: a value that no run may begin with does not matter.
  const fs::path weights = run.model() / "model.safetensors";
  std::string bytes = testing::bytes_of(weights);
  std::fill(bytes.end() - 4, bytes.end(), '\xff');
  std::ofstream(weights, std::ios::binary) << bytes;
  options.resume_from_checkpoint = "true";
  options.engine.zero = ZeroStage::gradients;
  const TinyOutcome resumed = train_on_ranks(4, options, 4);
  EXPECT_THAT(resumed.output, HasSubstr("resumed at step 3 of 9 from "));
  const Json record = record_with(options, "resume_read_bytes_of_ranks");
  EXPECT_EQ(record["step"], 4);
  EXPECT_GT(record["resume_seconds"].get<double>(), 0);
  const auto read = record["resume_read_bytes_of_ranks"].get<std::vector<int64_t>>();
  const auto checked = record["resume_checked_bytes_of_ranks"].get<std::vector<int64_t>>();
  ASSERT_EQ(read.size(), 4U);
  EXPECT_LT(*std::max_element(read.begin(), read.end()), tensor_bytes / 3);
  EXPECT_GE(std::accumulate(read.begin(), read.end(), int64_t{0}), tensor_bytes);
  EXPECT_EQ(std::accumulate(checked.begin(), checked.end(), int64_t{0}), checkpoint_bytes);
}

TEST(ResumedRun, refuses_a_model_with_other_numbers_and_names_them) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 2);
  Json config = read_json(run.model() / "config.json");
  config["rope_theta"] = 12345.0;
  std::ofstream(run.model() / "config.json") << config.dump();
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("rope_theta"), HasSubstr("-> 12345.0")));
  EXPECT_EQ(saved_steps(options), std::vector<int64_t>{2});
}

TEST(ResumedRun, tells_another_global_batch_and_keeps_it_where_it_is_asked_to) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 2);
  options.resume_from_checkpoint = "true";
  const TinyOutcome doubled = train_on_ranks(2, options, 4);
  EXPECT_THAT(doubled.output, AllOf(HasSubstr("ranks 1 -> 2"), HasSubstr("global batch 2 -> 4 samples")));
  EXPECT_EQ(doubled.records.at(4).tokens_seen, 2 * 2 * 16 + 2 * 4 * 16);
  fs::remove_all(RunDirectory(options.output_dir).checkpoint(4));
  options.keep_global_batch = true;
  const TinyOutcome kept = train_on_ranks(2, options, 4);
  EXPECT_THAT(kept.output,
              AllOf(HasSubstr("gradient_accumulation_steps 2 -> 1"), Not(HasSubstr("global batch"))));
  EXPECT_EQ(kept.records.at(4).tokens_seen, 4 * 2 * 16);
  EXPECT_EQ(read_json(options.output_dir / "config.json")["gradient_accumulation_steps"], 1);
  // Asked for twice as many on the checkpoint's ranks.
  options.gradient_accumulation_steps = 2;
  EXPECT_THAT(train_on_ranks(2, options, 6).output,
              HasSubstr("gradient_accumulation_steps 2 -> 1, as the checkpoint's run had"));
}

TEST(ResumedRun, keeps_the_global_batch_of_stages_that_set_theirs) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = R"([{"max_seq_length": 16, "steps": 2, "gradient_accumulation_steps": 2},
                               {"steps": 2, "gradient_accumulation_steps": 4}])";
  train_on_ranks(1, options, 2);
  options.resume_from_checkpoint = "true";
  options.keep_global_batch = true;
  const TinyOutcome kept = train_on_ranks(2, options);
  EXPECT_EQ(kept.records.at(4).tokens_seen, 2 * 2 * 16 + 2 * 4 * 16);
  EXPECT_THAT(kept.output, Not(HasSubstr("global batch")));
}

TEST(ResumedRun, keeps_the_global_batch_of_the_stages_that_are_left) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = R"([{"max_seq_length": 16, "steps": 2}, {"sp": 2, "tokens": 128, "zero": 3},
                               {"steps": 1}])";
  options.gradient_accumulation_steps = 1;
  options.warmup_ratio = 0;
  options.keep_global_batch = true;
  train_on_ranks(2, options, 3);
  options.resume_from_checkpoint = "true";
  EXPECT_EQ(train_on_ranks(4, options).records.at(7).tokens_seen, 7 * 2 * 16);
}

TEST(ResumedRun, of_epochs_or_tokens_is_refused_with_another_global_batch_and_goes_on_with_the_same) {
  const TinyRun run;
  for (const char* stages : {R"([{"max_seq_length": 16, "tokens": 128}])", ""}) {
    TrainOptions options = run.options(*stages == 0 ? "epochs" : "tokens");
    options.context_stages = stages;
    options.samples.max_seq_length = 16;
    options.num_train_epochs = 1;
    const int64_t steps = train_on_ranks(1, options, 2).outcome.total_steps;
    options.resume_from_checkpoint = "true";
    EXPECT_THAT(problem_of(options, 2), HasSubstr("2 samples a step"));
    options.keep_global_batch = true;
    EXPECT_EQ(train_on_ranks(2, options).records.rbegin()->first, steps);
  }
}

TEST(ResumedRun, takes_another_global_batch_where_tokens_count_later_stages_alone) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = R"([{"max_seq_length": 16, "steps": 4}, {"max_seq_length": 32, "tokens": 256}])";
  train_on_ranks(1, options, 2);
  options.resume_from_checkpoint = "true";
  EXPECT_EQ(train_on_ranks(2, options).outcome.total_steps, 4 + 2);
}

// As in transformers: a step whose gradients overflowed takes its learning rate again.
TEST(ResumedRun, in_fp16_goes_on_with_a_schedule_that_overflowed_steps_do_not_move) {
  const TinyRun run;
  TrainOptions options = run.options("fp32");
  options.context_stages = "16:12,32:4";
  const auto rates = train_on_ranks(1, options).records;
  options.output_dir = run.folder() / "fp16";
  options.engine.precision = Precision::fp16;
  options.engine.loss_scale.initial = std::exp2(28);
  auto records = train_on_ranks(1, options, 3).records;
  options.resume_from_checkpoint = "true";
  records.merge(train_on_ranks(1, options).records);
  int64_t overflowed = 0;
  for (const auto& [step, record] : records) {
    if (step == 13) overflowed = 0;
    EXPECT_EQ(record.learning_rate, rates.at(step - overflowed).learning_rate) << "step " << step;
    if (record.skipped) ++overflowed;
    EXPECT_TRUE(step != 4 || overflowed == 4) << "expected overflows on both sides of the resume";
  }
}

TEST(ResumedRun, at_another_sequence_length_is_refused_before_it_is_built_and_can_begin_its_data_anew) {
  const TinyRun run;
  TrainOptions options = options_of_steps(run, 4);
  train_on_ranks(1, options, 2);
  options.resume_from_checkpoint = "true";
  options.samples.max_seq_length = 24;
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("16 -> 24"), HasSubstr("--resume_with_new_data")));
  options.resume_with_new_data = true;
  EXPECT_EQ(train_on_ranks(1, options, 3).records.at(3).sequence_tokens, 24);
  // Beside stages the flag has no meaning; a stage of another length is refused while it is the one that goes
  // on.
  options.resume_with_new_data = false;
  options.samples.max_seq_length = 77;
  options.max_steps = -1;
  options.context_stages = "16:4,32:2";
  EXPECT_THAT(problem_of(options), HasSubstr("24 -> 16"));
  options.context_stages = "24:4,32:2";
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 6);
}

TEST(ResumedRun, with_fewer_steps_than_the_checkpoint_has_is_refused) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 4);
  options.resume_from_checkpoint = "true";
  options.context_stages = "16:3";
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("is at step 4"), HasSubstr("last step 3")));
}

TEST(Restart, goes_on_from_what_its_launch_wrote_where_the_flags_ask_for_a_fresh_run) {
  const TinyRun run;
  for (const bool overwrite : {false, true}) {
    TrainOptions options = run.options(overwrite ? "overwriting" : "plain");
    options.save_steps = 2;
    options.overwrite_output_dir = overwrite;
    train_on_ranks(2, options, 3, attempt("0", "launch 1"));
    const TinyOutcome outcome = train_on_ranks(2, options, 0, attempt("1", "launch 1"));
    EXPECT_EQ(outcome.losses.begin()->first, 4) << overwrite;
    EXPECT_THAT(outcome.output, HasSubstr("restart 1 of this launch")) << overwrite;
  }
}

// A job whose first launch got to step 2 and whose second went on to step 4; then all of it is queued again.
TEST(Restart, goes_on_from_the_newest_of_all_where_the_flags_ask_for_that) {
  const TinyRun run;
  for (const char* resume : {"auto", "true", "latest"}) {
    TrainOptions options = run.options(cat("run-", resume));
    train_on_ranks(1, options, 2, attempt("0", "job.0"));
    options.resume_from_checkpoint = resume;
    train_on_ranks(1, options, 4, attempt("0", "job.1"));
    EXPECT_EQ(train_on_ranks(1, options, 6, attempt("1", "job.0")).losses.begin()->first, 5) << resume;
  }
}

TEST(Restart, of_a_run_from_a_path_goes_on_from_what_its_launch_wrote_or_else_from_the_path) {
  const TinyRun run;
  TrainOptions options = run.options("first");
  train_on_ranks(1, options, 2);
  options.resume_from_checkpoint = RunDirectory(options.output_dir).checkpoint(2).string();
  options.output_dir = run.folder() / "second";
  EXPECT_EQ(train_on_ranks(1, options, 4, attempt("1", "job")).losses.begin()->first, 3);
  EXPECT_EQ(train_on_ranks(1, options, 6, attempt("2", "job")).losses.begin()->first, 5);
}

TEST(ResumedRun, from_an_earlier_step_abandons_the_later_checkpoints_and_keeps_its_own) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.save_steps = 2;
  train_on_ranks(1, options);
  EXPECT_THAT(saved_steps(options), ElementsAre(2, 4, 6, 8, 9));
  const RunDirectory folder(options.output_dir);
  options.resume_from_checkpoint = folder.checkpoint(4).string();
  options.save_total_limit = 2;
  const TinyOutcome back = train_on_ranks(1, options, 5);
  EXPECT_THAT(back.output, AllOf(HasSubstr("abandoned-step-6 to abandoned-step-9"), HasSubstr("step 4")));
  EXPECT_THAT(saved_steps(options), ElementsAre(4, 5));
  EXPECT_TRUE(fs::exists(folder.checkpoints() / "abandoned-step-9" / "manifest.json"));
  options.resume_from_checkpoint = "auto";
  EXPECT_EQ(train_on_ranks(1, options).losses.begin()->first, 6);
  EXPECT_TRUE(fs::exists(folder.checkpoints() / "abandoned-step-6" / "manifest.json"));
}

TEST(ResumedRun, from_a_path_into_another_run_is_refused_where_its_folder_holds_checkpoints) {
  const TinyRun run;
  TrainOptions other = run.options("other"), options = run.options("run");
  train_on_ranks(1, other, 2);
  train_on_ranks(1, options, 3);
  for (const fs::path& path : {other.output_dir, RunDirectory(other.output_dir).checkpoint(2)}) {
    options.resume_from_checkpoint = path.string();
    EXPECT_THAT(problem_of(options), AllOf(HasSubstr("another run"), HasSubstr("--output_dir")));
  }
  EXPECT_THAT(saved_steps(options), ElementsAre(3));
  // With a slash at its end, and by another name for the same folder.
  options.resume_from_checkpoint = (run.folder() / "run" / "checkpoints" / "." / "step-3" / "").string();
  EXPECT_EQ(train_on_ranks(1, options).losses.begin()->first, 4);
}

TEST(Restart, overwrites_another_launchs_run_as_its_first_attempt_would_have) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 3, attempt("0", "launch 1"));
  EXPECT_THAT([&] { train_on_ranks(1, options, 0, attempt("1", "launch 2")); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("--overwrite_output_dir")));
  options.overwrite_output_dir = true;
  EXPECT_EQ(train_on_ranks(1, options, 0, attempt("1", "launch 2")).losses.begin()->first, 1);
}

TEST(Restart, removes_no_checkpoints_where_its_launch_is_only_guessed) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 3, attempt("0", "agent 1"));
  options.overwrite_output_dir = true;
  EXPECT_THAT([&] { train_on_ranks(1, options, 0, attempt("1", "agent 2")); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("a restarted attempt removes none")));
  options.output_dir = run.options("new").output_dir;
  EXPECT_EQ(train_on_ranks(1, options, 0, attempt("1", "agent 2")).losses.begin()->first, 1);
}

TEST(OverwritingRun, contradicts_one_that_resumes) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.overwrite_output_dir = true;
  for (const char* resume : {"true", "auto", "latest", "/a/path"}) {
    options.resume_from_checkpoint = resume;
    EXPECT_THAT(problem_of(options), AllOf(HasSubstr("--overwrite_output_dir"), HasSubstr(resume)));
  }
  options.resume_from_checkpoint = "false";
  EXPECT_EQ(problem_of(options), "no error");
}

// Refused late (the set is too short for its second stage), and ended by an error in its first step: the
// earlier run is as it was.
TEST(OverwritingRun, leaves_the_earlier_one_whole_until_its_first_step_is_done) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options);
  const auto files = [&] {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(options.output_dir))
      if (entry.is_regular_file() && entry.path().filename() != "run.lock")
        all[entry.path().string()] = testing::bytes_of(entry.path());
    return all;
  };
  const auto before = files();
  TrainOptions next = options;
  next.overwrite_output_dir = true;
  next.context_stages = "16:2,512:2";  // longer than the set
  EXPECT_THROW(train_on_ranks(1, next), Error);
  EXPECT_TRUE(files() == before);
  next = options;
  next.overwrite_output_dir = true;
  next.model_dir = run.overflowing_model();
  EXPECT_THROW(train_on_ranks(1, next), Error);
  EXPECT_TRUE(files() == before);
}

TEST(OverwritingRun, removes_the_earlier_one_with_its_tokens_when_its_first_step_is_done) {
  const TinyRun run;
  TrainOptions options = run.with_text("run", some_text(1), tokenizer());
  options.save_steps = 3;
  train_on_ranks(2, options);
  EXPECT_THAT(saved_steps(options), ElementsAre(3, 6, 9));
  std::ofstream(run.text()) << some_text(2);
  options.overwrite_output_dir = true;
  options.save_steps = 0;
  options.context_stages = "16:2";
  train_on_ranks(2, options);
  EXPECT_THAT(saved_steps(options), ElementsAre(2));
  std::set<std::string> prefixes;
  for (const auto& entry : fs::directory_iterator(RunDirectory(options.output_dir).data())) {
    const std::string name = entry.path().filename().string();
    prefixes.insert(name.substr(0, name.find('.')));
  }
  EXPECT_EQ(prefixes.size(), 1U) << "the tokens of the new text alone";
}

TEST(OverwritingRun, keeps_the_set_that_it_trains_on_however_its_path_is_written) {
  const TinyRun run;
  const fs::path data = run.folder() / "run/data";
  fs::create_directories(run.folder() / "elsewhere");
  fs::create_directories(data);
  for (const char* name : {"train-0123456789abcdef", "train-00000000deadbeef"})
    for (const char* kind : {".bin", ".idx"})
      fs::copy_file(run.tokens().string() + kind, (data / name).string() + kind);
  fs::create_directory_symlink(data, run.folder() / "elsewhere/link");
  TrainOptions options = run.options("run");
  options.overwrite_output_dir = true;
  options.context_stages = "16:2";
  for (const char* path :
       {"run/./data/train-0123456789abcdef.bin", "elsewhere/../run/data/train-0123456789abcdef",
        "elsewhere/link/train-0123456789abcdef.idx"}) {
    options.train_file = run.folder() / path;
    train_on_ranks(1, options);
    for (const char* kind : {".bin", ".idx"}) {
      EXPECT_TRUE(fs::exists(data / cat("train-0123456789abcdef", kind))) << path;
      EXPECT_FALSE(fs::exists(data / cat("train-00000000deadbeef", kind))) << "of an earlier run";
    }
  }
}

TEST(Restart, removes_no_broken_checkpoints_of_its_launch) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.overwrite_output_dir = true;
  train_on_ranks(1, options, 2, attempt("0", "launch 1"));
  fs::remove(RunDirectory(options.output_dir).checkpoint(2) / "rank-00000.safetensors");
  EXPECT_THROW(train_on_ranks(1, options, 0, attempt("1", "launch 1")), DataError);
  EXPECT_EQ(saved_steps(options), std::vector<int64_t>{2});
}

}  // namespace
}  // namespace trireme
