// What --continue_run makes of the options of a finished run.
#include "trireme/cli/continued_options.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/train.h"

#include "tests/support/error_message.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::continued_options_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ContinuedOptions : public ::testing::Test {
 protected:
  void finish(const std::string& stages, int64_t lora_rank = 0) {
    TrainOptions options = run_.options("run");
    options.engine.lora.rank = lora_rank;
    options.context_stages = stages;
    if (stages.empty()) {
      options.samples.max_seq_length = 16;
      options.max_steps = 2;
    }
    options.warmup_ratio = 0;
    options.engine.rope.scaling = "yarn:4";
    testing::train_on_ranks(1, options);
  }
  TrainOptions of_one_step() const {
    TrainOptions options = run_.options("run");
    options.context_stages = "";
    options.max_steps = 1;
    options.samples.max_seq_length = 16;
    return options;
  }
  TrainOptions given(const std::vector<std::string>& words) {
    Declared<TrainFlags> train("train");
    train.parser.parse(words, [&] {
      const auto& named = train.flags.options.continue_run;
      notes_ = add_continued_options(train.parser, named.empty() ? run_.folder() / "run" : named);
      given_ulysses_ = train.parser.given("ulysses");
    });
    return train.flags.options;
  }

  static TrainOptions read(const std::vector<std::string>& words, int ranks = 1) {
    Declared<TrainFlags> train("train");
    train.parser.parse(words, [&] { train.flags.read_files(train.parser, ranks); });
    return train.flags.options;
  }
  std::string finished() const { return (run_.folder() / "run").string(); }
  // config.json of a run that continues the finished one.
  void expect_that_it_replays() {
    const TrainOptions continued = read({"--continue_run", finished(), "--max_seq_length", "32"});
    testing::train_on_ranks(1, continued);
    const TrainOptions replayed = read({"--config", (continued.output_dir / "config.json").string()});
    EXPECT_EQ(to_json(replayed), to_json(continued));
  }

  testing::TinyRun run_;
  std::vector<std::string> notes_;
  bool given_ulysses_ = false;
};

TEST_F(ContinuedOptions, are_those_of_the_finished_run_where_no_flag_says_otherwise) {
  finish("");
  const TrainOptions options = given({"--max_seq_length", "32", "--learning_rate", "1e-3"});
  EXPECT_EQ(options.samples.max_seq_length, 32);
  EXPECT_EQ(options.learning_rate, 1e-3);
  EXPECT_EQ(options.max_steps, 2);
  EXPECT_EQ(options.gradient_accumulation_steps, 2);
  EXPECT_EQ(options.train_file, run_.tokens());
  EXPECT_EQ(options.model_dir, run_.folder() / "run/checkpoints/step-2");
  EXPECT_EQ(options.output_dir, (run_.folder() / "run").string() + "-continued");
  EXPECT_EQ(options.logging_dir, "");
  EXPECT_EQ(options.engine.rope.scaling, "");  // in the checkpoint's config.json
  EXPECT_THAT(notes_.at(0), AllOf(HasSubstr("step-2"), HasSubstr("run-continued")));
  EXPECT_EQ(given({"--output_dir", "elsewhere"}).output_dir, "elsewhere");
  EXPECT_EQ(given({"--num_train_epochs", "3"}).max_steps, TrainOptions().max_steps);  // which displaces them
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(run_.folder() / "run");
  EXPECT_EQ(given({"--continue_run", "."}).output_dir, (run_.folder() / "run").string() + "-continued");
  std::filesystem::current_path(before);
  EXPECT_TRUE(given({"--output_dir", "elsewhere"}).max_steps == 2 && given_ulysses_);
  given({"--sp", "4"});
  EXPECT_FALSE(given_ulysses_);  // which --sp decides
  EXPECT_EQ(given({"--continue_run", (run_.folder() / "run/checkpoints/step-2/").string()}).max_steps, 2);
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                given({"--model_name_or_path", "other"});
              }),
              AllOf(HasSubstr("--continue_run"), HasSubstr("--model_name_or_path")));
}

TEST_F(ContinuedOptions, of_lora_are_the_model_it_was_trained_beside_its_positions_and_its_adapters) {
  finish("", /*lora_rank=*/2);
  const TrainOptions options = given({"--max_seq_length", "32"});
  EXPECT_EQ(options.model_dir, std::filesystem::absolute(run_.model()));
  EXPECT_EQ(options.engine.lora.adapter, run_.folder() / "run/checkpoints/step-2");
  EXPECT_EQ(options.engine.lora.rank, 0) << "the folder says it";
  EXPECT_THAT(options.engine.rope.scaling, HasSubstr("yarn"));
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                given({"--lora_r", "4"});
              }),
              AllOf(HasSubstr("its LoRA adapters"), HasSubstr("leave --lora_r out")));
  std::filesystem::rename(run_.model(), run_.folder() / "moved");
  EXPECT_THAT(testing::message_of<ConfigError>([&] { given({}); }),
              AllOf(HasSubstr("adapter_config.json names the model"), HasSubstr("--model_name_or_path")));
  EXPECT_EQ(given({"--model_name_or_path", (run_.folder() / "moved").string()}).model_dir,
            run_.folder() / "moved");
}

TEST_F(ContinuedOptions, of_a_whole_model_are_not_those_of_lora) {
  finish("");
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                given({"--lora_r", "4"});
              }),
              AllOf(HasSubstr("the whole model"), HasSubstr("--model_name_or_path")));
}

TEST_F(ContinuedOptions, of_a_whole_model_are_replayed_by_config_json) {
  finish("");
  expect_that_it_replays();
}

TEST_F(ContinuedOptions, of_lora_are_replayed_by_config_json) {
  finish("", /*lora_rank=*/2);
  expect_that_it_replays();
}

TEST_F(ContinuedOptions, of_lora_that_a_file_changes_are_refused_and_the_file_is_named) {
  finish("");
  const fs::path file = run_.folder() / "lora.yaml";
  std::ofstream(file) << "lora_r: 4\n";
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                read({"--continue_run", finished(), "--config", file.string()});
              }),
              AllOf(HasSubstr("the whole model"), HasSubstr("leave " + file.string() + ": lora_r out")));
}

TEST_F(ContinuedOptions, leave_out_what_a_flag_has_no_use_for) {
  TrainOptions options = of_one_step();
  options.lr_scheduler_type = ScheduleKind::cosine_with_min_lr;
  options.lr_scheduler_kwargs = R"({"min_lr_rate": 0.5})";
  options.warmup_steps = 0.5;
  options.guards = {.on_spike = OnSpike::warn, .spike_factor = 2};
  testing::train_on_ranks(1, options);
  EXPECT_EQ(given({"--lr_scheduler_type", "cosine_with_min_lr"}).lr_scheduler_kwargs,
            options.lr_scheduler_kwargs);
  EXPECT_EQ(given({"--lr_scheduler_type", "linear"}).lr_scheduler_kwargs, "");
  EXPECT_EQ(given({"--lr_scheduler_type", "linear"}).warmup_steps, 0.5);
  EXPECT_EQ(given({"--lr_scheduler_type", "constant"}).warmup_steps, 0);
  EXPECT_EQ(given({"--warmup_ratio", "0.25"}).warmup_steps, 0);
  EXPECT_EQ(given({}).guards.spike_factor, 2);
  EXPECT_EQ(given({"--on_spike", "off"}).guards.spike_factor, GuardOptions().spike_factor);
}

TEST_F(ContinuedOptions, that_need_more_ranks_say_whose_they_are) {
  TrainOptions options = of_one_step();
  options.engine.ring = 2;
  testing::train_on_ranks(2, options);
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                read({"--continue_run", finished()});
              }),
              AllOf(HasSubstr(finished() + ": ring: 2 ranks are to share a sample, and the run has 1 rank"),
                    HasSubstr("trireme launch --nproc_per_node 2")));
  EXPECT_EQ(read({"--continue_run", finished(), "--sp", "1"}).max_steps, 1);
}

// An older machine's peak would make MFU wrong, and its limits refuse what fits now.
TEST_F(ContinuedOptions, leave_out_what_is_of_the_machine) {
  TrainOptions options = of_one_step();
  options.peak_tflops = 0.5;
  options.engine.host_memory_limit_bytes = int64_t{8} << 30;
  testing::train_on_ranks(1, options);
  EXPECT_EQ(given({}).peak_tflops, 0);
  EXPECT_EQ(given({}).engine.host_memory_limit_bytes, 0);
  EXPECT_EQ(given({"--peak_tflops", "2"}).peak_tflops, 2);
}

TEST_F(ContinuedOptions, stages_that_are_done_are_not_done_again) {
  finish("16:2,32:1");
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                given({"--max_seq_length", "64"});
              }),
              AllOf(HasSubstr("--context_stages"), HasSubstr("--max_steps")));
  EXPECT_EQ(given({"--max_steps", "5"}).samples.max_seq_length, 32);  // of the last stage
  const TrainOptions staged = given({"--context_stages", "64:3"});
  EXPECT_EQ(staged.context_stages, "64:3");
  EXPECT_EQ(staged.max_steps, -1);
}

TEST_F(ContinuedOptions, do_not_change_the_batch_that_a_deepspeed_file_gives) {
  TrainOptions options = of_one_step();
  options.engine.ulysses = 2;
  testing::train_on_ranks(2, options);
  std::ofstream(run_.folder() / "ds.json") << R"({"train_batch_size": 8})";
  const auto samples_of_rank = [&](std::vector<std::string> words) {
    const std::string ds = (run_.folder() / "ds.json").string();
    words.insert(words.end(), {"--continue_run", finished(), "--deepspeed", ds});
    const TrainOptions continued = read(words, 2);
    return continued.per_device_train_batch_size * continued.gradient_accumulation_steps;
  };
  EXPECT_THAT(testing::message_of<ConfigError>([&] { samples_of_rank({}); }),
              AllOf(HasSubstr("among 2 ranks"), HasSubstr("--ulysses")));
  EXPECT_EQ(samples_of_rank({"--ulysses", "2"}), 8);
  EXPECT_EQ(samples_of_rank({"--ulysses", "1"}), 4);
}

}  // namespace
}  // namespace trireme::continued_options_test
