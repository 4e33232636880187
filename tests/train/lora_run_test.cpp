// Runs that train LoRA adapters: what a checkpoint holds, what a run goes on with, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/continued_run.h"
#include "trireme/train/run_directory.h"

#include "tests/train/tiny_run.h"

namespace trireme::lora_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::problem_of;
using testing::tensors_of;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

TrainOptions adapted(const TinyRun& run, const char* output_name) {
  TrainOptions options = run.options(output_name);
  options.engine.lora.rank = 4;
  options.engine.lora.alpha = 16;
  return options;
}

// To the bit: `rest` is a run whose steps are counted from `steps_before` of `whole` on.
void expect_the_end_of(const TinyOutcome& whole, const TinyOutcome& rest, int64_t steps_before = 0) {
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole.losses.at(step + steps_before)) << step;
  EXPECT_EQ(tensors_of(rest.outcome.checkpoint), tensors_of(whole.outcome.checkpoint));
}

TEST(LoraRun, learns_with_adapters_alone_and_its_checkpoint_holds_nothing_else) {
  const TinyRun run;
  TrainOptions options = adapted(run, "run");
  options.context_stages = "16:40:2e-2";
  options.engine.optimizer.kind = &find_optimizer("adamw_torch");
  const TinyOutcome trained = train_on_ranks(2, options);
  EXPECT_LT(trained.losses.at(40), trained.losses.at(1) - 0.5);
  EXPECT_THAT(trained.output, AllOf(HasSubstr("are trained"), HasSubstr("LoRA of rank 4, scale 4, of q_proj"),
                                    Not(HasSubstr("LongLoRA"))));
  const auto& checkpoint = trained.outcome.checkpoint;
  for (const auto& [name, bytes] : tensors_of(checkpoint))
    EXPECT_TRUE(name.starts_with("base_model.model.") || name.starts_with("layer.")) << name;
  const AdapterFolder folder = read_adapter_config(checkpoint);
  EXPECT_EQ(folder.config.rank, 4);
  EXPECT_EQ(std::filesystem::path(folder.model), std::filesystem::absolute(run.model()));
}

TEST(LoraRun, with_another_rotary_embedding_says_what_it_does_not_train) {
  const TinyRun run;
  TrainOptions options = adapted(run, "run");
  options.context_stages = "16:2";
  options.engine.rope.scaling = "yarn:4";
  EXPECT_THAT(train_on_ranks(1, options).output, AllOf(HasSubstr("LoRA trains neither norms nor embeddings"),
                                                       HasSubstr("--lora_modules_to_save")));
  options.output_dir = run.folder() / "with-head";
  options.engine.lora.modules_to_save = "lm_head";
  EXPECT_THAT(train_on_ranks(1, options).output, HasSubstr("LongLoRA"));
  options.output_dir = run.folder() / "with-norms";
  options.engine.lora.modules_to_save = "embed_tokens,norm";
  EXPECT_THAT(train_on_ranks(1, options).output,
              AllOf(HasSubstr("; embed_tokens, norm whole"), Not(HasSubstr("LongLoRA"))));
  options = run.options("whole");
  options.context_stages = "16:2";
  options.engine.rope.scaling = "yarn:4";
  EXPECT_THAT(train_on_ranks(1, options).output, Not(HasSubstr("LongLoRA")));
}

TEST(LoraRun, that_was_stopped_goes_on_to_the_bit_on_every_zero_stage) {
  const TinyRun run;
  for (const auto& [zero, whole_modules] : {std::pair{ZeroStage::none, ""},
                                            {ZeroStage::gradients, "embed_tokens,norm"},
                                            {ZeroStage::parameters, ""},
                                            {ZeroStage::parameters, "lm_head,norm"}}) {
    const std::string name = cat("zero", static_cast<int>(zero), whole_modules);
    TrainOptions options = adapted(run, name.c_str());
    options.engine.zero = zero;
    options.engine.ulysses = 2;
    options.engine.lora.modules_to_save = whole_modules;
    const TinyOutcome whole = train_on_ranks(2, options);
    options.output_dir = run.folder() / (name + "-stopped");
    train_on_ranks(2, options, 3);
    options.resume_from_checkpoint = "true";
    expect_the_end_of(whole, train_on_ranks(2, options));
  }
}

// Rank 0 writes the layer without attention alone, and SGD keeps nothing of it.
TEST(LoraRun, goes_on_where_the_layers_that_a_rank_writes_have_no_adapters) {
  const TinyRun run;
  testing::write_tiny_model(run.model(), testing::tiny_qwen3_5_config());
  TrainOptions options = adapted(run, "run");
  options.engine.lora.targets = "q_proj,v_proj";
  const TinyOutcome whole = train_on_ranks(2, options);
  options.output_dir = run.folder() / "stopped";
  train_on_ranks(2, options, 3);
  options.resume_from_checkpoint = "true";
  expect_the_end_of(whole, train_on_ranks(2, options));
}

TEST(LoraRun, goes_on_with_no_other_adapters) {
  const TinyRun run;
  TrainOptions options = adapted(run, "run");
  train_on_ranks(1, options, 3);
  options.resume_from_checkpoint = "true";
  const auto problem = [&](const std::function<void(LoraOptions&)>& change) {
    TrainOptions other = options;
    change(other.engine.lora);
    return problem_of(other);
  };
  EXPECT_THAT(problem([](LoraOptions& lora) { lora.alpha = 8; }),
              AllOf(HasSubstr("scale 4"), HasSubstr("scale 2"), HasSubstr("not that of the checkpoint")));
  EXPECT_THAT(problem([](LoraOptions& lora) { lora.rank = 2, lora.alpha = 8; }), HasSubstr("rank 2"));
  EXPECT_THAT(problem([](LoraOptions& lora) { lora.targets = "q_proj"; }), HasSubstr("of q_proj"));
  EXPECT_THAT(problem([](LoraOptions& lora) { lora.modules_to_save = "norm"; }), HasSubstr("; norm whole"));
  EXPECT_THAT(problem([](LoraOptions& lora) { lora = {}; }), HasSubstr("-> \"none\""));

  TrainOptions plain = run.options("plain");
  train_on_ranks(1, plain, 3);
  plain.resume_from_checkpoint = "true";
  plain.engine.lora.rank = 4;
  EXPECT_THAT(problem_of(plain), HasSubstr("lora \"none\" ->"));
}

TEST(LoraRun, is_continued_from_its_adapters_and_their_optimizer_states) {
  for (const char* whole_modules : {"", "embed_tokens,norm"}) {
    const TinyRun run;
    TrainOptions options = adapted(run, "both");
    options.engine.lora.modules_to_save = whole_modules;
    options.context_stages = "16:5,32:4:5e-3";
    const TinyOutcome both = train_on_ranks(2, options);
    options.output_dir = run.folder() / "finished";
    options.context_stages = "16:5";
    train_on_ranks(2, options);
    TrainOptions next = run.options("continued");
    next.continue_run = options.output_dir;
    next.engine.lora.adapter = continued_checkpoint(options.output_dir);
    next.context_stages = "32:4:5e-3";
    expect_the_end_of(both, train_on_ranks(2, next), /*steps_before=*/5);
  }
}

TEST(LoraRun, begins_with_the_values_of_an_adapter) {
  const TinyRun run;
  testing::write_tiny_adapter(run.model(), run.folder() / "adapter",
                              {.rank = 3, .alpha = 3, .targets = {"q_proj", "down_proj"}});
  TrainOptions options = run.options("run");
  options.engine.lora.adapter = run.folder() / "adapter";
  const TinyOutcome with = train_on_ranks(1, options, 1);
  options = run.options("without");
  const TinyOutcome without = train_on_ranks(1, options, 1);
  EXPECT_GT(std::abs(with.losses.at(1) - without.losses.at(1)), 1e-3);
  // Fresh adapters add nothing, and what is trained whole begins as it is in the model.
  EXPECT_EQ(train_on_ranks(1, adapted(run, "fresh"), 1).losses.at(1), without.losses.at(1));
  options = adapted(run, "whole");
  options.engine.lora.modules_to_save = "embed_tokens,lm_head,norm";
  options.engine.zero = ZeroStage::gradients;
  EXPECT_EQ(train_on_ranks(2, options, 1).losses.at(1),
            train_on_ranks(2, adapted(run, "two"), 1).losses.at(1));
}

TEST(LoraRun, goes_on_without_the_folder_that_it_began_with_also_in_another_engine) {
  for (const std::vector<std::string>& whole_modules :
       {std::vector<std::string>{}, std::vector<std::string>{"embed_tokens", "norm"}}) {
    const TinyRun run;
    const auto adapter = run.folder() / "adapter";
    testing::write_tiny_adapter(
        run.model(), adapter,
        {.rank = 3, .alpha = 6, .targets = {"v_proj", "o_proj"}, .modules_to_save = whole_modules});
    TrainOptions options = run.options("run");
    options.engine.lora.adapter = adapter;
    options.context_stages = R"([{"max_seq_length": 16, "steps": 4},
                                 {"max_seq_length": 16, "steps": 4, "zero": 3, "recompute": "full"}])";
    const TinyOutcome whole = train_on_ranks(2, options);
    EXPECT_THAT(whole.output, HasSubstr("the engine is assembled anew"));
    options.output_dir = run.folder() / "stopped";
    options.engine.save_in_background = true;
    train_on_ranks(2, options, 2);
    std::filesystem::remove_all(adapter);
    options.resume_from_checkpoint = "true";
    expect_the_end_of(whole, train_on_ranks(2, options));
  }
}

// What the folder says stands in its checkpoints' options; in config.json, which replays, it would contradict
// the folder.
TEST(LoraRun, names_the_adapter_that_it_began_with_in_config_json_and_nothing_that_the_adapter_says) {
  const TinyRun run;
  const auto adapter = run.folder() / "adapter";
  testing::write_tiny_adapter(run.model(), adapter, {.rank = 3, .alpha = 6, .targets = {"v_proj"}});
  TrainOptions options = run.options("run");
  options.engine.lora.adapter = adapter;
  const Json asked = to_json(options);
  const auto expect_lora = [&](const TinyOutcome& trained) {
    const Json config = read_json(RunDirectory(options.output_dir).config());
    for (const char* name :
         {"adapter", "lora_r", "lora_alpha", "use_rslora", "lora_target_modules", "lora_modules_to_save"})
      EXPECT_EQ(config[name], asked[name]) << name;
    const Json saved = read_json(trained.outcome.checkpoint / "trainer_state.json")["options"];
    EXPECT_EQ(saved["adapter"], "");
    EXPECT_EQ(saved["lora_r"], 3);
  };
  expect_lora(train_on_ranks(1, options, 2));
  std::filesystem::remove_all(adapter);
  options.resume_from_checkpoint = "true";
  expect_lora(train_on_ranks(1, options));
}

TEST(LoraRun, refuses_an_adapter_that_was_trained_with_dropout_or_other_positions) {
  const TinyRun run;
  const auto adapter = run.folder() / "adapter";
  testing::write_tiny_adapter(run.model(), adapter, {.rank = 3, .alpha = 6, .targets = {"v_proj"}});
  TrainOptions options = run.options("run");
  options.engine.lora.adapter = adapter;
  Json config = read_json(run.model() / "config.json");
  config["rope_theta"] = 77777.0;
  config.erase("rope_parameters");
  replace_file(adapter / "config.json", config.dump());
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("theta 77777"), HasSubstr("--rope_scaling")));
  options.engine.rope.theta = 77777.0;
  EXPECT_EQ(train_on_ranks(1, options, 1).losses.size(), 1U);
  config["rms_norm_eps"] = 0.25;
  replace_file(adapter / "config.json", config.dump());
  options.output_dir = run.folder() / "other-model";
  EXPECT_THAT(problem_of(options),
              AllOf(HasSubstr("trained with rms_norm_eps 0.25"), HasSubstr("belongs to")));
  Json lora = read_json(adapter / kAdapterConfigFile);
  lora["lora_dropout"] = 0.05;
  replace_file(adapter / kAdapterConfigFile, lora.dump());
  options.output_dir = run.folder() / "dropped";
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("lora_dropout is 0.05"), HasSubstr("not built")));
}

TEST(LoraRun, goes_on_beside_the_weights_that_it_began_beside_alone) {
  const TinyRun run;
  TrainOptions options = adapted(run, "run");
  train_on_ranks(1, options, 3);
  options.resume_from_checkpoint = "true";
  testing::write_tiny_model(run.folder() / "other", read_json(run.model() / "config.json"), /*spread=*/0.2);
  const auto model = options.model_dir;
  options.model_dir = run.folder() / "other";
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("other"), HasSubstr("beside which the adapters")));
  // Where they are does not matter.
  std::filesystem::rename(model, run.folder() / "moved");
  options.model_dir = run.folder() / "moved";
  EXPECT_GT(train_on_ranks(1, options).outcome.steps, 3);
}

TEST(LoraRun, is_no_model_to_begin_with) {
  const TinyRun run;
  const TinyOutcome trained = train_on_ranks(1, adapted(run, "run"), 2);
  TrainOptions options = run.options("next");
  options.model_dir = trained.outcome.checkpoint;
  EXPECT_THAT(problem_of<DataError>(options), AllOf(HasSubstr("of a LoRA adapter"), HasSubstr("--merge")));
}

TEST(LoraRun, options_of_lora_without_a_rank_are_refused) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.engine.lora.alpha = 8;
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("--lora_alpha"), HasSubstr("--lora_r 16")));
}

}  // namespace
}  // namespace trireme::lora_run_test
