// Who counts where a flag, --config and --deepspeed say something; and a run's config.json as --config.
#include "trireme/cli/config_files.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/changed_options.h"
#include "trireme/cli/train.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"
#include "tests/support/other_value.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace trireme::config_files_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

struct Parsed : Declared<TrainFlags> {
  Parsed() : Declared("train") {}
  std::vector<std::string> notes;
};

class GivenFiles : public ::testing::Test {
 protected:
  // As run_train, with the ranks of a run.
  std::unique_ptr<Parsed> parse(const Words& more, int ranks = 1,
                                const Words& needed = {"--model_name_or_path", "m", "--train_file",
                                                       "t"}) const {
    auto parsed = std::make_unique<Parsed>();
    Words words = needed;
    words.insert(words.end(), more.begin(), more.end());
    parsed->parser.parse(words, [&] { parsed->notes = parsed->flags.files.add_to(parsed->parser, ranks); });
    return parsed;
  }
  std::string refusal(const Words& more, int ranks = 1) const {
    return testing::message_of<ConfigError>([&] { parse(more, ranks); });
  }
  std::string file(const std::string& name, const std::string& text) const {
    return folder_.write(name, text).string();
  }

  testing::TemporaryFolder folder_;
};

TEST_F(GivenFiles, a_flag_leaves_out_what_it_makes_meaningless_in_config) {
  const std::string config =
      file("run.yaml",
           "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 0.1}\n"
           "warmup_steps: 4\non_spike: warn\nspike_factor: 2\n");
  const auto with = [&](const char* flag, const char* value) {
    return parse({"--config", config, flag, value})->flags.options;
  };
  EXPECT_EQ(with("--lr_scheduler_type", "cosine_with_min_lr").lr_scheduler_kwargs, R"({"min_lr_rate":0.1})");
  EXPECT_EQ(with("--lr_scheduler_type", "linear").lr_scheduler_kwargs, "");
  EXPECT_EQ(with("--lr_scheduler_type", "linear").warmup_steps, 4);
  EXPECT_EQ(with("--lr_scheduler_type", "constant").warmup_steps, 0);
  EXPECT_EQ(with("--on_spike", "stop").guards.spike_factor, 2);
  EXPECT_EQ(with("--on_spike", "off").guards.spike_factor, GuardOptions().spike_factor);
}

TEST_F(GivenFiles, a_flag_beats_what_counts_more_than_it_or_contradicts_it_in_config) {
  const auto with = [&](const std::string& text, const char* flag, const char* value) {
    return parse({"--config", file("run.yaml", text), flag, value})->flags.options;
  };
  EXPECT_EQ(with("warmup-steps: 100", "--warmup_ratio", "0.5").warmup_steps, 0);
  EXPECT_EQ(with("warmup_ratio: 0.5", "--warmup_steps", "0").warmup_ratio, 0);
  EXPECT_EQ(with("max_steps: 5", "--num_train_epochs", "3").max_steps, -1);
  EXPECT_EQ(with("max_steps: 5", "--context_stages", "64:3").max_steps, -1);
  EXPECT_EQ(with("eval_file: a", "--validation_split_percentage", "5").eval_file, "");
  EXPECT_EQ(with("validation_split_percentage: 5", "--eval_file", "a").validation_split_percentage, 0);
  EXPECT_EQ(with("warmup_steps: 100", "--max_steps", "5").warmup_steps, 100);
  const std::string kwargs = "lr-scheduler-type: cosine_with_min_lr\nlr-scheduler-kwargs: {min_lr_rate: 0.1}";
  EXPECT_EQ(with(kwargs, "--lr_scheduler_type", "linear").lr_scheduler_kwargs, "");
}

// Another schedule may be a later stage's, which warms up as all do.
TEST_F(GivenFiles, a_constant_schedule_leaves_the_warm_up_of_stages_that_set_another) {
  const std::string with_stages = file("run.yaml",
                                       "warmup_steps: 4\ncontext_stages: [{max_seq_length: 32, steps: 4}, "
                                       "{steps: 8, lr_scheduler_type: linear}]\n");
  const std::string alike =
      file("alike.yaml", "warmup_steps: 4\ncontext_stages: [{max_seq_length: 32, steps: 4}]\n");
  const std::string without = file("other.yaml", "warmup_steps: 4\ncontext_stages: null\n");
  const auto constant = [&](const std::string& config) {
    return parse({"--config", config, "--lr_scheduler_type", "constant"})->flags.options.warmup_steps;
  };
  EXPECT_EQ(constant(with_stages), 4);
  EXPECT_EQ(constant(alike), 0);
  const std::string stages =
      file("stages.yaml", "- {max_seq_length: 32, steps: 4, lr_scheduler_type: linear}\n");
  EXPECT_EQ(constant(file("named.yaml", "warmup_steps: 4\ncontext_stages: " + stages + "\n")), 4);
  EXPECT_EQ(constant(without), 0);
}

TEST_F(GivenFiles, a_flag_beats_config_under_each_of_its_names) {
  const std::string config = file("run.yaml",
                                  "model_name_or_path: other\nzero: 2\nbf16: true\nlearning-rate: 2e-5\n"
                                  "max_seq_length: 16k\nrecompute: full\nulysses: 4\nring: 2\n"
                                  "lr_scheduler_kwargs: {min_lr_rate: 0.1}\nresume_from_checkpoint: true\n"
                                  "rope_scaling: {rope_type: yarn, factor: 4}\n"
                                  "context_stages: [{max_seq_length: 32k, steps: 4}]\n");
  const auto alone = parse({"--config", config}, 8, {"--train_file", "t"});
  EXPECT_EQ(alone->flags.options.model_dir, "other");
  EXPECT_EQ(alone->flags.options.engine.zero, ZeroStage::gradients);
  EXPECT_EQ(alone->flags.options.engine.precision, Precision::bf16);
  EXPECT_EQ(alone->flags.options.learning_rate, 2e-5);
  EXPECT_EQ(alone->flags.options.samples.max_seq_length, 16384);
  EXPECT_EQ(alone->flags.options.lr_scheduler_kwargs, R"({"min_lr_rate":0.1})");
  EXPECT_EQ(alone->flags.options.resume_from_checkpoint, "true");
  EXPECT_EQ(alone->flags.options.engine.rope.scaling, R"({"factor":4,"rope_type":"yarn"})");
  EXPECT_EQ(alone->flags.options.context_stages, R"([{"max_seq_length":"32k","steps":4}])");
  EXPECT_EQ(alone->parser.source_of("zero"), config + ": zero");
  const auto both =
      parse({"--config", config, "--zero", "1", "--fp16", "--gradient_checkpointing=false", "--sp", "8"}, 8);
  EXPECT_EQ(both->flags.options.model_dir, "m");
  EXPECT_EQ(both->flags.options.engine.zero, ZeroStage::optimizer);
  EXPECT_EQ(both->flags.options.engine.precision, Precision::fp16);
  EXPECT_EQ(both->parser.source_of("zero"), "--zero");
  EXPECT_EQ(both->parser.source_of("bf16"), "");
  EXPECT_FALSE(both->parser.given("ulysses") || both->parser.given("ring"));
}

TEST_F(GivenFiles, a_list_of_a_config_is_a_flags_words_with_commas_or_the_one_name_of_a_choice) {
  const auto options = [&](const std::string& text) {
    return parse({"--config", file("run.yaml", text)})->flags.options;
  };
  EXPECT_EQ(options("lora_target_modules: [q_proj, v_proj]").engine.lora.targets, "q_proj,v_proj");
  EXPECT_EQ(options("lora_modules_to_save:\n- norm\n- embed_tokens").engine.lora.modules_to_save,
            "norm,embed_tokens");
  EXPECT_EQ(options("context_stages: ['1k:60', '4k:20']").context_stages, "1k:60,4k:20");
  EXPECT_EQ(options("context_stages: ['']").context_stages, R"([""])") << "which its reader refuses";
  EXPECT_FALSE(options("report_to: [none]").tensorboard);
  const auto config = [&](const std::string& text) { return refusal({"--config", file("run.yaml", text)}); };
  EXPECT_THAT(config("report_to: [tensorboard, wandb]"),
              HasSubstr("run.yaml: report_to: --report_to is 'wandb': not built"));
  EXPECT_THAT(config("report_to: [all, none]"), HasSubstr("--report_to is [\"all\",\"none\"]; expected"));
  EXPECT_THAT(config("text_field: [text]"), HasSubstr("--text_field is [\"text\"]; expected TEXT"));
}

TEST_F(GivenFiles, faults_of_a_config_are_told_with_file_and_name) {
  const auto config = [&](const std::string& text) { return refusal({"--config", file("run.yaml", text)}); };
  EXPECT_THAT(config("max_seqlength: 5"),
              AllOf(HasSubstr("run.yaml: max_seqlength"), HasSubstr("did you mean --max_seq_length?")));
  EXPECT_THAT(config("do_eval: true"), HasSubstr("--eval_file or"));
  EXPECT_THAT(config("zero: 7"), AllOf(HasSubstr("run.yaml: zero"), HasSubstr("from 0 to 3")));
  EXPECT_THAT(config("zero: yes"), AllOf(HasSubstr("run.yaml: zero"), HasSubstr("--zero")));
  EXPECT_THAT(config("zero: true"), HasSubstr("expected COUNT"));
  EXPECT_THAT(config("bf16: [1]"), HasSubstr("expected true or false"));
  EXPECT_THAT(config("packing: document"), HasSubstr("'documents'?"));
  EXPECT_THAT(config("bf16: true\nfp16: true"), HasSubstr("contradict each other"));
  EXPECT_THAT(config("zero-: 1\nmax-steps: 1\nmax_steps: 1"), HasSubstr("twice"));
  EXPECT_THAT(config("zero_optimization: {stage: 3}"), HasSubstr("as --deepspeed"));
  EXPECT_THAT(config("config: other.yaml"), HasSubstr("names no other --config"));
}

// Every option with a value that is not its default goes through a run's config.json.
TEST_F(GivenFiles, config_json_of_a_run_replays_every_option) {
  testing::write_tiny_model(folder_ / "model", testing::tiny_llama_config());
  TrainOptions options;
  OptionList list;
  list_train_options(list, options);
  for (const Option& option : list.options())
    if (option.is_flag() && option.in_config && option.name != "fp16")
      option.write(testing::other_value(option));
  options.output_dir = "run";
  options.logging_dir = "logs";
  const Json written = to_json(options);
  const auto replayed = parse({"--config", file("config.json", written.dump(2))}, 1, {});
  const Json again = to_json(replayed->flags.options);
  for (const auto& [name, value] : written.items()) EXPECT_EQ(again[name], value) << name;
}

TEST_F(GivenFiles, a_replayed_run_takes_its_device_and_not_the_folder_that_followed_from_the_old_output) {
  TrainOptions options;
  options.engine.device = at::Device(at::kCUDA, 3);
  options.output_dir = "old";
  options.logging_dir = "old/runs";
  const std::string config = file("config.json", to_json(options).dump());
  const auto replayed = parse({"--config", config, "--output_dir", "new"});
  EXPECT_EQ(replayed->flags.process.device, DeviceChoice::cuda);
  EXPECT_EQ(replayed->flags.options.logging_dir, "");
  EXPECT_EQ(replayed->flags.options.output_dir, "new");
}

TEST_F(GivenFiles, config_json_of_a_run_that_began_with_an_adapter_begins_with_it_again) {
  const testing::TinyRun run;
  testing::write_tiny_adapter(run.model(), folder_ / "adapter",
                              {.rank = 2, .alpha = 8, .targets = {"q_proj", "down_proj"}});
  TrainOptions options = run.options("run");
  options.engine.lora.adapter = folder_ / "adapter";
  const auto first = testing::train_on_ranks(1, options, 1);
  const std::string config = (options.output_dir / "config.json").string();
  const auto replayed = parse({"--config", config, "--output_dir", (run.folder() / "again").string()}, 1, {});
  const auto again = testing::train_on_ranks(1, replayed->flags.resolve({}), 1);
  EXPECT_EQ(again.losses.at(1), first.losses.at(1));
}

TEST_F(GivenFiles, a_flag_that_contradicts_a_deepspeed_file_is_refused_and_both_are_named) {
  const std::string ds = file("ds.json", R"({"zero_optimization": {"stage": 3}, "fp16": {"enabled": true},
                                            "gradient_clipping": "auto"})");
  EXPECT_THAT(refusal({"--deepspeed", ds, "--zero", "2"}),
              AllOf(HasSubstr("ds.json: zero_optimization.stage is 3"), HasSubstr("--zero is 2")));
  EXPECT_THAT(refusal({"--deepspeed", ds, "--bf16"}),
              AllOf(HasSubstr("fp16.enabled is true"), HasSubstr("--bf16 is true")));
  EXPECT_THAT(
      refusal({"--deepspeed", file("negative.json", R"({"gradient_accumulation_steps": 0})")}),
      AllOf(HasSubstr("negative.json: gradient_accumulation_steps"), HasSubstr("a number from 1 to")));
  EXPECT_THAT(refusal({"--deepspeed", ds, "--config", file("run.yaml", "zero: 1")}),
              AllOf(HasSubstr("zero_optimization.stage"), HasSubstr("run.yaml: zero is 1")));
  const auto agreed = parse({"--deepspeed", ds, "--zero", "3", "--max_grad_norm", "0.5"});
  EXPECT_EQ(agreed->flags.options.engine.zero, ZeroStage::parameters);
  EXPECT_EQ(agreed->flags.options.engine.optimizer.max_grad_norm, 0.5);
  EXPECT_EQ(agreed->flags.options.engine.precision, Precision::fp16);
  // What a flag overrode is not in the way.
  EXPECT_NO_THROW(
      parse({"--deepspeed", ds, "--zero", "3", "--config", file("run.yaml", "zero: 1\nbf16: false")}));
}

TEST_F(GivenFiles, steps_per_print_gives_way_to_logging_steps) {
  const std::string ds = file("ds.json", R"({"steps_per_print": 10})");
  EXPECT_EQ(parse({"--deepspeed", ds})->flags.options.logging_steps, 10);
  EXPECT_EQ(parse({"--deepspeed", ds, "--logging_steps", "1"})->flags.options.logging_steps, 1);
  EXPECT_EQ(parse({"--deepspeed", ds, "--config", file("run.yaml", "logging_steps: 2")})
                ->flags.options.logging_steps,
            2);
}

TEST_F(GivenFiles, a_flag_beats_what_deepspeed_takes_for_a_key_that_is_not_there) {
  const std::string ds =
      file("ds.json", R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1}}})");
  EXPECT_EQ(parse({"--deepspeed", ds})->flags.options.warmup_steps, 1000);
  EXPECT_EQ(parse({"--deepspeed", ds})->flags.options.warmup_type, WarmupType::log);
  const auto given = parse({"--deepspeed", ds, "--warmup_steps", "10", "--warmup_type", "linear"});
  EXPECT_EQ(given->flags.options.warmup_steps, 10);
  EXPECT_EQ(given->flags.options.warmup_type, WarmupType::linear);
}

TEST_F(GivenFiles, a_deepspeed_file_is_named_as_the_trainer_and_as_deepspeed_name_it) {
  const std::string ds = file("ds.json", R"({"zero_optimization": {"stage": 3}})");
  for (const Words& words : {Words{"--deepspeed", ds}, Words{"--deepspeed_config", ds},
                             Words{"--deepspeed", "--deepspeed_config", ds}, Words{"--deepspeed=" + ds},
                             Words{"--config", file("run.yaml", "deepspeed: " + ds)}})
    EXPECT_EQ(parse(words)->flags.options.engine.zero, ZeroStage::parameters) << words[0];
  EXPECT_THAT(refusal({"--deepspeed"}), HasSubstr("needs a file"));
  EXPECT_THAT(refusal({"--deepspeed", ds, "--deepspeed_config", "b"}), HasSubstr("two files"));
}

TEST_F(GivenFiles, the_batch_follows_from_the_ranks_of_the_run) {
  const auto batch = [&](const std::string& text, const Words& more, int ranks) {
    Words words{"--deepspeed", file("ds.json", text)};
    words.insert(words.end(), more.begin(), more.end());
    const auto parsed = parse(words, ranks);
    return std::pair(parsed->flags.options.per_device_train_batch_size,
                     parsed->flags.options.gradient_accumulation_steps);
  };
  const std::string two = R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1,
                              "sequence_parallelism": {"degree": 8}})";
  EXPECT_EQ(batch(two, {}, 32), std::pair(1L, 4L));
  EXPECT_EQ(batch(two, {}, 8), std::pair(1L, 16L));
  EXPECT_EQ(batch(R"({"train_batch_size": 16})", {"--gradient_accumulation_steps", "2"}, 4),
            std::pair(2L, 2L));
  EXPECT_EQ(batch(R"({"train_batch_size": 16})", {"--ulysses", "2", "--ring", "2"}, 8), std::pair(8L, 1L));
  EXPECT_EQ(batch(R"({"train_micro_batch_size_per_gpu": "auto"})", {}, 4), std::pair(8L, 1L));
  EXPECT_THAT(refusal({"--deepspeed", file("ds.json", two), "--gradient_accumulation_steps", "2"}, 32),
              AllOf(HasSubstr("ds.json: train_batch_size 16 is not train_micro"),
                    HasSubstr("train_micro_batch_size_per_gpu 1 x "
                              "--gradient_accumulation_steps 2")));
  EXPECT_THAT(refusal({"--deepspeed", file("ds.json", two), "--per_device_train_batch_size", "2"}, 32),
              AllOf(HasSubstr("train_micro_batch_size_per_gpu is 1"),
                    HasSubstr("--per_device_train_batch_size is 2")));
  EXPECT_THAT(refusal({"--deepspeed", file("ds.json", two)}, 12),
              AllOf(HasSubstr("sequence_parallelism.degree: 8 ranks"), HasSubstr("12 ranks")));
}

TEST_F(GivenFiles, ranks_that_cannot_share_a_sample_are_told_with_what_asked_for_it) {
  const auto refused = [&](const Words& more, int ranks) {
    const auto parsed = parse(more, ranks);
    return testing::message_of<ConfigError>([&] { check_sharing_ranks(parsed->parser, ranks); });
  };
  EXPECT_THAT(refused({"--sp", "2"}, 1),
              StartsWith("--sp: 2 ranks are to share a sample, and the run has 1 rank;"));
  EXPECT_THAT(refused({"--ulysses", "2", "--ring", "3"}, 4), StartsWith("--ulysses x --ring: 6 ranks"));
  const std::string config = file("config.json", R"({"ulysses": 1, "ring": 2})");
  EXPECT_THAT(refused({"--config", config}, 3), StartsWith(config + ": ring: 2 ranks"));
  EXPECT_NO_THROW(check_sharing_ranks(parse({"--sp", "2"})->parser, 4));
  EXPECT_THAT(
      testing::message_of<ConfigError>([&] {
        check_sharing_ranks(parse({"--sp", "4"})->parser, 6, "", "--simulate_ranks");
      }),
      HasSubstr("--sp: 4 ranks are to share a sample, and the run has 6 ranks; expected a multiple of "
                "4: give --simulate_ranks 4"));
}

TEST_F(GivenFiles, a_list_of_stages_has_the_runs_ranks_a_sample_unless_its_first_stage_sets_them) {
  const auto refused = [&](const std::string& first_stage) {
    Parsed parsed;
    const std::string stages = cat(R"([{"steps": 2)", first_stage, R"(}, {"steps": 2, "sp": 2}])");
    return testing::message_of<ConfigError>([&] {
      parsed.parser.parse(
          {"--model_name_or_path", "m", "--train_file", "t", "--sp", "3", "--context_stages", stages},
          [&] { parsed.flags.read_files(parsed.parser, 4); });
    });
  };
  EXPECT_THAT(refused(""), StartsWith("--sp: 3 ranks are to share a sample, and the run has 4 ranks"));
  for (const char* sets : {R"(, "sp": 4)", R"(, "ulysses": 4)", R"(, "ring": 4)"})
    EXPECT_EQ(refused(sets), "no error") << sets;
}

TEST_F(GivenFiles, what_differs_from_the_defaults_is_shown_with_what_gave_it) {
  const std::string ds = file("ds.json", R"({"zero_optimization": {"stage": 3, "overlap_comm": true}})");
  const std::string config = file("run.yaml", "learning_rate: 2e-5\nseed: 42\n");
  const auto parsed =
      parse({"--deepspeed", ds, "--config", config, "--gradient_checkpointing", "--threads", "1"});
  const std::string text = changed_options_text(parsed->parser, parsed->flags.options);
  const auto has_line = [&](const Words& expected) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream in(line);
      std::string name, value, source;
      in >> name >> value >> std::ws;
      std::getline(in, source);
      if (Words{name, value, source} == expected) return true;
    }
    return false;
  };
  EXPECT_TRUE(has_line({"zero", "3", ds + ": zero_optimization.stage"}));
  EXPECT_TRUE(has_line({"learning_rate", "2e-05", config + ": learning_rate"}));
  EXPECT_TRUE(has_line({"gradient_checkpointing", "true", "--gradient_checkpointing"}));
  EXPECT_TRUE(has_line({"recompute", "full", "follows"}));
  EXPECT_TRUE(has_line({"threads", "1", "--threads"}));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("seed")), Not(HasSubstr("weight_decay"))));
  ASSERT_EQ(parsed->notes.size(), 1U);
  EXPECT_THAT(parsed->notes[0],
              AllOf(HasSubstr("zero_optimization.overlap_comm"), HasSubstr("beside compute")));
}

}  // namespace
}  // namespace trireme::config_files_test
