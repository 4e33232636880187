// `trireme plan` from words to files: what it computed with is what a run of its files computes with.
#include "trireme/cli/plan.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/config_document.h"
#include "trireme/cli/model_presets.h"
#include "trireme/cli/train.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/processor.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/model/rope_override.h"
#include "trireme/plan/planned_inputs.h"
#include "trireme/plan/step_work.h"

#include "tests/cli/stdout_of.h"
#include "tests/engine/tiny_model.h"
#include "tests/plan/planned_step.h"
#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"

namespace fs = std::filesystem;

namespace trireme::plan_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class PlanCommand : public ::testing::Test {
 protected:
  PlanCommand() {
    testing::write_tiny_model(folder_.path() / "model", testing::tiny_llama_config());
    HardwareProfile profile = testing::round_profile(/*is_gpu=*/false);
    profile.threads = 1;
    profile.bf16_products = cpu_has_bf16_matmul();
    profile.bf16_attention = processor_bf16_units().has_value();
    std::ofstream(cpu()) << to_json(profile);
    std::ofstream(gpu()) << to_json(testing::round_profile(/*is_gpu=*/true));
  }

  fs::path cpu() const { return folder_.path() / "cpu.json"; }
  fs::path gpu() const { return folder_.path() / "gpu.json"; }
  // Of 64 tokens, unless `more` has lengths.
  Words with_model(const Words& more) const {
    Words words{"--model", (folder_.path() / "model").string()};
    constexpr std::array kLengths = {"--max_seq_length", "--max_length", "--stages"};
    if (std::ranges::find_first_of(more, kLengths) == more.end())
      words.insert(words.end(), {"--max_seq_length", "64"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words on_cpu(const Words& more) const {
    Words words = with_model(more);
    words.insert(words.end(), {"--gpu", cpu().string()});
    return words;
  }
  static std::string refusal(const Words& words) {
    return testing::message_of<ConfigError>([&] { run_plan(words); });
  }
  static PlanRequest request_of(const Words& words) {
    Declared<PlanFlags> plan("plan");
    EXPECT_TRUE(plan.parser.parse(words, [&] { plan.flags.read_files(plan.parser); }));
    return plan.flags.resolve(plan.parser, find_planned_model(plan.flags.model));
  }
  struct Output {
    int code;
    std::string text;
  };
  static Output output_of(const Words& words) {
    int code = -1;
    std::string text = testing::stdout_of([&] {
      code = run_plan(words);
      return 0;
    });
    return {code, std::move(text)};
  }

  testing::TemporaryFolder folder_;
};

TEST_F(PlanCommand, computes_with_what_the_engine_of_its_files_computes_with) {
  const std::vector<std::pair<int, Words>> runs = {
      {1, {}},
      {1, {"--bf16", "--zero", "3", "--recompute", "none", "--save_in_background"}},
      {1, {"--attention", "reference", "--optim", "sgd", "--checkpoint_every", "2"}},
      {2, {"--ulysses", "2", "--bf16", "--head_chunks", "2", "--optim_state_dtype", "bf16"}},
      {2,
       {"--ring", "2", "--reduce_dtype", "bf16", "--recompute", "keep_attention", "--keep_fraction", "0.5"}},
      {1, {"--recompute", "keep_attention", "--keep_qkv_fraction", "1", "--keep_mlp_fraction", "0.5"}},
      {2, {"--sp", "1", "--zero", "1", "--samples_per_step", "8", "--tile_tokens", "48"}},
      {3, {"--ulysses", "3", "--zero", "2", "--update_in_backward", "--max_grad_norm", "0"}},
      {4, {"--ulysses", "2", "--ring", "2", "--ring_method", "gather", "--logits_tile_tokens", "32"}},
      {4,
       {"--ulysses", "2", "--offload_optimizer", "cpu", "--zero", "2", "--per_device_train_batch_size", "2"}},
  };
  const int threads = at::get_num_threads();
  for (size_t run = 0; run < runs.size(); ++run) {
    const int ranks = runs[run].first;
    const Words& more = runs[run].second;
    SCOPED_TRACE(::testing::PrintToString(more));
    Words words = on_cpu(more);
    const fs::path folder = folder_.path() / cat("plan-", run);
    words.insert(words.end(), {"--gpus", cat(ranks), "--output", folder.string()});
    if (std::ranges::find(words, "--bf16") == words.end()) words.insert(words.end(), {"--bf16", "false"});
    ASSERT_EQ(output_of(words).code, 0);

    const PlanRequest request = request_of(words);
    const Configuration chosen = make_plan(request).best.configuration;

    Declared<TrainFlags> train("train");
    ASSERT_TRUE(train.parser.parse({"--config", (folder / "run.yaml").string(), "--train_file", "text"},
                                   [&] { train.flags.read_files(train.parser, ranks); }));
    const TrainOptions options = train.flags.resolve({});
    EXPECT_EQ(options.samples.max_seq_length, 64);
    EXPECT_EQ(options.per_device_train_batch_size, chosen.batch);
    EXPECT_EQ(options.gradient_accumulation_steps, chosen.accumulation);
    run_ranks_as_threads(ranks, [&](World& world) {
      at::set_num_threads(1);
      EngineOptions of_engine = options.engine;
      of_engine.planned_batch.packed = true;  // as train says of its samples
      of_engine.planned_batch.micro_batches = chosen.accumulation;
      const auto engine = assemble(world, options.model_dir, of_engine);
      const int rank = engine->mesh().all->rank();
      ForecastInputs planned = planned_inputs(request, chosen, 64, rank % chosen.sequence_ranks());
      planned.rank = rank;
      EXPECT_EQ(planned, engine->forecast_inputs(chosen.batch, 64)) << rank;
    });
  }
  at::set_num_threads(threads);
}

// As the engine of its run does, which packs documents (forecast/device_kernels.h).
TEST_F(PlanCommand, counts_documents_computed_alone_where_a_run_computes_them_so) {
  const auto alone = [&](const Words& more) {
    Words words = with_model(more);
    words.insert(words.end(), {"--gpu", gpu().string()});
    return planned_inputs(request_of(words), {.tile_tokens = 64, .logits_tile_tokens = 64}, 64, 0)
        .documents_alone;
  };
  EXPECT_TRUE(alone({}));
  EXPECT_TRUE(alone({"--fp16"}));
  EXPECT_FALSE(alone({"--bf16", "false"}));
  EXPECT_FALSE(alone({"--attention", "flash"}));
}

TEST_F(PlanCommand, a_cpus_ranks_share_the_host_memory_that_is_given) {
  HardwareProfile measured = testing::round_profile(/*is_gpu=*/false);
  measured.devices_per_machine = 1;
  measured.memory_bytes = measured.host_memory_bytes = int64_t{8} << 30;
  std::ofstream(cpu()) << to_json(measured);
  const auto memory = [&](const Words& more) {
    Words words = on_cpu({"--gpus", "4", "--gpus_per_machine", "4"});
    words.insert(words.end(), more.begin(), more.end());
    return request_of(words).hardware.memory_bytes;
  };
  EXPECT_EQ(memory({}), int64_t{2} << 30);
  EXPECT_EQ(memory({"--host_memory_limit", "512m"}), int64_t{128} << 20);
}

TEST_F(PlanCommand, names_its_list_of_stages_for_a_run_from_any_folder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  const int code = output_of(on_cpu({"--stages", "16,...,64", "--output", "plan"})).code;
  fs::current_path(before);
  ASSERT_EQ(code, 0);
  EXPECT_THAT(testing::bytes_of(folder_.path() / "plan/run.yaml"),
              HasSubstr((folder_.path() / "plan/stages.yaml").string()));
}

TEST_F(PlanCommand, writes_lines_that_a_shell_takes_whatever_the_folder_is_called) {
  const std::string folder = (folder_ / "my plan").string();
  for (const Words& lengths : {Words{"--max_seq_length", "64"}, {"--stages", "32,64"}}) {
    Words words{"--model", "tiny", "--gpu", cpu().string(), "--output", folder};
    words.insert(words.end(), lengths.begin(), lengths.end());
    EXPECT_THAT(output_of(words).text, AllOf(HasSubstr(cat(" --out '", folder, "/model'\n")),
                                             HasSubstr(cat(" --config '", folder, "/run.yaml' "))));
  }
}

TEST_F(PlanCommand, shares_the_tokens_of_a_run_among_its_stages) {
  const std::filesystem::path folder = folder_ / "staged";
  ASSERT_EQ(output_of(on_cpu({"--stages", "16,32,64", "--tokens", "9k", "--output", folder.string()})).code,
            0);
  int64_t tokens = 0;
  const Json stages = read_document(folder / "stages.yaml").json;
  ASSERT_EQ(stages.size(), 3U);
  for (const Json& stage : stages) tokens += stage["tokens"].get<int64_t>();
  EXPECT_EQ(tokens, 9 * 1024);
}

TEST_F(PlanCommand, tells_each_stage_s_share_of_the_budget) {
  const Words words = on_cpu({"--stages", "16,32,64", "--tokens", "9k"});
  EXPECT_THAT(output_of(words).text, AllOf(HasSubstr("3,072 tokens: "), HasSubstr("9,216 tokens: ")));
  Words as_json = words;
  as_json.emplace_back("--json");
  for (const Json& stage : parse_json(output_of(as_json).text, "plan")) {
    const Json& budget = stage["budget"];
    EXPECT_EQ(budget["tokens"], 3 * 1024);
    const double seconds = 3 * 1024 / stage["best"]["time"]["tokens_per_second"].get<double>();
    EXPECT_DOUBLE_EQ(budget["seconds"], seconds);
    EXPECT_DOUBLE_EQ(budget["device_hours"], seconds / 3600 * stage["best"]["devices"].get<double>());
  }
}

TEST_F(PlanCommand, the_ds_config_it_writes_says_the_same) {
  const fs::path folder = folder_.path() / "plan";
  ASSERT_EQ(output_of(on_cpu({"--gpus", "4", "--sp", "2", "--zero", "2", "--samples_per_step", "8",
                              "--output", folder.string()}))
                .code,
            0);
  const PlanRequest request =
      request_of(on_cpu({"--gpus", "4", "--ds_config", (folder / "ds_config.json").string()}));
  EXPECT_EQ(request.pinned.sp, 2);
  EXPECT_EQ(request.pinned.zero, 2);
  EXPECT_EQ(request.samples_per_step, 8);
  EXPECT_EQ(request.pinned.batch.value() * request.pinned.accumulation.value(), 4);
}

TEST_F(PlanCommand, a_ds_config_pins_and_passes_on_what_it_says) {
  const fs::path file = folder_.path() / "ds.json", folder = folder_.path() / "plan";
  std::ofstream(file) << R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 0.002}},
    "sequence_parallelism": {"enabled": true, "degree": 2, "sequence_parallel_type": "ulysses"}})";
  const Output output =
      output_of(on_cpu({"--gpus", "4", "--ds_config", file.string(), "--output", folder.string(), "--json"}));
  const Json configuration = parse_json(output.text, "plan")["best"]["configuration"];
  const Json expected{{"zero", 1},
                      {"ulysses", 2},
                      {"gradient_accumulation_steps", 2},
                      {"samples_per_step", 8},
                      {"per_device_train_batch_size", 2}};
  for (const auto& [name, value] : expected.items()) EXPECT_EQ(configuration[name], value) << name;
  const Json run = read_config_document(folder / "run.yaml").json;
  EXPECT_EQ(run["learning_rate"], 0.002);
}

TEST_F(PlanCommand, a_configuration_that_is_given_whole_is_told_whole) {
  const Output output = output_of(on_cpu(
      {"--gpus", "2", "--ulysses", "2", "--ring", "1", "--zero", "1", "--recompute", "full", "--json"}));
  EXPECT_EQ(output.code, 0);
  const Json plan = parse_json(output.text, "plan");
  const Json expected{
      {"data_parallel", 1}, {"ulysses", 2}, {"zero", 1}, {"recompute", "full"}, {"head_chunks", 1}};
  for (const auto& [name, value] : expected.items())
    EXPECT_EQ(plan["best"]["configuration"][name], value) << name;
  EXPECT_GT(plan["best"]["memory"]["device_bytes"], 0);
  EXPECT_GT(plan["best"]["time"]["step_seconds"], 0);
}

TEST_F(PlanCommand, a_ds_config_that_contradicts_itself_is_refused_as_train_refuses_it) {
  const fs::path file = folder_.path() / "ds.json";
  std::ofstream(file) << R"({"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4, "sequence_parallel_size": 2})";
  EXPECT_THAT(refusal(on_cpu({"--gpus", "4", "--ds_config", file.string()})),
              AllOf(HasSubstr("train_batch_size"), HasSubstr("trireme config fix")));
}

TEST_F(PlanCommand, positions_that_do_not_reach_are_stretched_and_it_says_so) {
  const std::vector<std::string> asked{"--model", "tiny", "--gpu", cpu().string(), "--max_seq_length", "2m"};
  EXPECT_THAT(output_of(asked).text,
              AllOf(HasSubstr("1,048,576 positions"), HasSubstr("--rope_scaling yarn:2 ")));
  std::vector<std::string> given = asked;
  given.insert(given.end(), {"--rope_scaling", "linear:4"});
  EXPECT_THAT(output_of(given).text, AllOf(HasSubstr("--rope_scaling linear:4"), Not(HasSubstr("yarn"))));
  given.back() = "linear:1";
  EXPECT_THAT(refusal(given), HasSubstr("--rope_scaling yarn:2"));
}

// The tiny preset has 1,048,576 positions.
TEST_F(PlanCommand, each_stage_stretches_the_positions_by_what_its_length_needs) {
  const fs::path folder = folder_ / "staged";
  const std::string text = output_of({"--model", "tiny", "--gpu", cpu().string(), "--stages", "512k,2m,4m",
                                      "--output", folder.string()})
                               .text;
  EXPECT_THAT(text, HasSubstr("rope_scaling yarn:2 at 2,097,152 tokens, yarn:4 at 4,194,304 tokens"));
  const Json stages = read_document(folder / "stages.yaml").json;
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_FALSE(stages[0].contains("rope_scaling"));
  EXPECT_EQ(stages[1]["rope_scaling"], "yarn:2");
  EXPECT_EQ(stages[2]["rope_scaling"], "yarn:4");
  EXPECT_FALSE(read_config_document(folder / "run.yaml").json.contains("rope_scaling"));
}

TEST_F(PlanCommand, an_encoder_without_a_mask_token_is_left_a_place_for_one) {
  const Words of_preset{"--model", "bert-tiny", "--gpu", cpu().string()};
  const auto planned = [&](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return output_of(words).text;
  };
  EXPECT_THAT(
      planned(of_preset, {"--max_seq_length", "64"}),
      AllOf(HasSubstr(" --mask_token_id ID --train_file TEXT"), HasSubstr("no tokenizer with [MASK]")));
  const std::string folder = (folder_.path() / "staged").string();
  EXPECT_THAT(
      planned(of_preset, {"--stages", "32,64", "--output", folder}),
      AllOf(HasSubstr(" --mask_token_id ID --train_file TEXT"), HasSubstr("no tokenizer with [MASK]")));

  const fs::path model = folder_.path() / "encoder";
  fs::create_directory(model);
  std::ofstream(model / "config.json") << find_planned_model("bert-tiny").config.raw;
  std::ofstream(model / "tokenizer.json") << R"({"added_tokens": [{"id": 258, "content": "[MASK]"}]})";
  const Words of_folder{"--model", model.string(), "--gpu", cpu().string()};
  EXPECT_THAT(planned(of_folder, {"--max_seq_length", "64"}),
              AllOf(Not(HasSubstr("mask_token_id")), Not(HasSubstr("dropout"))));
  EXPECT_THAT(planned(on_cpu({}), {}), Not(HasSubstr("mask_token_id")));
}

TEST_F(PlanCommand, a_model_that_asks_for_dropout_is_trained_without_it_and_it_says_so) {
  const fs::path model = folder_.path() / "encoder";
  fs::create_directory(model);
  Json config = find_planned_model("bert-tiny").config.raw;
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) config.erase(key);
  std::ofstream(model / "config.json") << config;
  const Words asked{"--model", model.string(), "--gpu", cpu().string(), "--max_seq_length", "64"};
  EXPECT_THAT(output_of(asked).text, AllOf(HasSubstr(" --dropout 0 "), HasSubstr("asks for dropout")));
}

TEST_F(PlanCommand, positions_are_stretched_to_the_longest_length) {
  const Json plan =
      parse_json(output_of(on_cpu({"--max_length", "--memory_share", "0.05", "--json"})).text, "plan");
  const ModelConfig config = read_model_config(folder_.path() / "model");
  const int64_t longest = plan["best"]["tokens"].get<int64_t>();
  ASSERT_GT(longest, position_reach(config));
  EXPECT_THAT(plan["launch"].get<std::string>(),
              HasSubstr(cat("--rope_scaling ", rope_scaling_to_reach(config, longest), " ")));
  EXPECT_THAT(plan["advice"].dump(), HasSubstr("the plan stretches them"));
}

TEST_F(PlanCommand, refuses_with_help) {
  EXPECT_THAT(refusal({"--gpu", cpu().string()}), HasSubstr("needs --model"));
  EXPECT_EQ(refusal(on_cpu({"--learning_rate", "1e-4"})),
            "trireme plan has no flag --learning_rate: a plan does not choose it; add it to the launch line");
  EXPECT_THAT(refusal(on_cpu({"--gradient_checkpointing"})), HasSubstr("give --recompute full"));
  EXPECT_THAT(refusal(on_cpu({"--context_stages", "1k,2k"})), HasSubstr("give --stages"));
  EXPECT_THAT(refusal({"--model_name_or_path", "tini", "--gpu", cpu().string()}), HasSubstr("'tiny'?"));
  EXPECT_THAT(refusal(on_cpu({"--gpus", "64", "--samples_per_step", "0", "--ring", "128"})),
              HasSubstr("multiple of 128"));
  EXPECT_THAT(refusal({"--model", "tiny", "--gpu", cpu().string(), "--gpus", "32", "--max_seq_length", "16",
                       "--samples_per_step", "1"}),
              HasSubstr("16 tokens is shorter than the 32 ranks"));
  EXPECT_THAT(refusal(with_model({"--gpu", "h900"})), HasSubstr("h900"));
  EXPECT_THAT(refusal(with_model({})), HasSubstr("needs --gpu"));
  EXPECT_THAT(refusal({"--model", "tini", "--gpu", cpu().string()}), HasSubstr("'tiny'?"));
  EXPECT_THAT(refusal({"--model", "tiny", "--gpu", cpu().string()}), HasSubstr("--max_seq_length"));
  EXPECT_THAT(refusal({"--model", "bert-tiny", "--gpu", cpu().string(), "--max_seq_length", "2m"}),
              HasSubstr("max_position_embeddings 8192"));
  EXPECT_THAT(refusal(on_cpu({"--ulysses", "8", "--gpus", "8"})), HasSubstr("4 query heads"));
  EXPECT_THAT(refusal(on_cpu({"--head_chunks", "3", "--gpus", "2"})), HasSubstr("--head_chunks"));
  EXPECT_THAT(refusal(on_cpu({"--memory_budget", "1g"})), HasSubstr("--memory_share"));
  EXPECT_THAT(refusal(on_cpu({"--allow_disk"})), HasSubstr("--offload_dir"));
  EXPECT_THAT(refusal(on_cpu({"--offload_params", "cpu", "--zero", "1"})), HasSubstr("--zero 3"));
  EXPECT_THAT(refusal(on_cpu({"--keep_fraction", "0.5"})), HasSubstr("--recompute keep_attention"));
  EXPECT_THAT(refusal(on_cpu({"--gpus", "6"})), HasSubstr("whole machines"));
  EXPECT_THAT(refusal({"--model", "tiny", "--gpu", cpu().string(), "--gpus", "2", "--ulysses", "2",
                       "--strict_divisible", "--max_seq_length", "63"}),
              HasSubstr("63 is not divisible"));
  EXPECT_THAT(refusal(on_cpu({"--stages", "64,32"})), HasSubstr("--stages"));
}

TEST_F(PlanCommand, exits_1_where_nothing_fits) {
  const Output output =
      output_of({"--model", "llama3-8b", "--gpu", cpu().string(), "--max_seq_length", "4k"});
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.text, AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("--explain_oom"),
                                 HasSubstr("run out of memory:\ntrireme init --preset llama3-8b")));
}

TEST_F(PlanCommand, refuses_an_attention_kernel_that_the_gpu_the_dtype_or_the_model_lacks) {
  const auto asked = [](const Words& words) {
    Words all{"--attention", "flash4", "--max_seq_length", "64k"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  EXPECT_THAT(output_of(asked({"--model", "llama3-8b", "--gpu", "h100-80gb"})).text,
              HasSubstr("--attention flash4"));
  EXPECT_THAT(refusal(asked({"--model", "llama3-8b", "--gpu", "a100-80gb"})),
              HasSubstr("got bf16 on a100-80gb, expected bf16 on a Hopper GPU"));
  EXPECT_THAT(refusal(asked({"--model", "llama3-8b", "--gpu", "h100-80gb", "--fp16"})),
              HasSubstr("got fp16"));
  EXPECT_THAT(refusal(asked({"--model", "tiny", "--gpu", "h100-80gb"})),
              HasSubstr("expected a width of 64, 128, 256 and at most 8 query heads"));
}

TEST_F(PlanCommand, knows_the_reference_kernel_in_short_samples_of_a_cpu_alone) {
  EXPECT_THAT(refusal(on_cpu({"--attention", "reference", "--max_seq_length", "4097"})),
              HasSubstr("got 4,097 tokens, expected at most 4,096"));
  EXPECT_THAT(refusal({"--model", "tiny", "--gpu", "h100-80gb", "--attention", "reference",
                       "--max_seq_length", "64"}),
              HasSubstr("is not planned on a GPU, here h100-80gb"));
  const Json plan =
      parse_json(output_of(on_cpu({"--attention", "reference", "--max_length", "--json"})).text, "plan");
  EXPECT_EQ(plan["longest_tokens"], 4096);
}

TEST_F(PlanCommand, refuses_flags_that_the_answer_does_not_read) {
  for (const Words& words : {Words{"--max_seq_length", "64", "--max_length"},
                             {"--max_seq_length", "64", "--stages", "32,64"},
                             {"--max_length", "--stages", "32,64"},
                             {"--objective", "length", "--stages", "32,64"},
                             {"--objective", "fewest_gpus", "--stages", "32,64"},
                             {"--html", "x.html", "--max_seq_length", "64", "--explain_oom"},
                             {"--tokens", "5b", "--max_seq_length", "64", "--explain_oom"}})
    EXPECT_THAT(refusal(on_cpu(words)), ::testing::StartsWith(words.front() + " means nothing"));
}

TEST_F(PlanCommand, plans_stages_and_the_longest_length) {
  const Output stages = output_of(on_cpu({"--stages", "16,...,64", "--json"}));
  EXPECT_EQ(parse_json(stages.text, "plan").size(), 3);
  Words words = on_cpu({"--max_length", "--json"});
  const Json plan = parse_json(output_of(words).text, "plan");
  EXPECT_EQ(plan["best"]["tokens"], plan["longest_tokens"]);
}

TEST(PlannedModel, multiplies_as_many_parameters_as_the_model_has_whatever_its_kind) {
  for (const ModelPreset& preset : model_presets()) {
    const ModelConfig config = parse_model_config(preset.config, preset.name);
    const ModelLayout layout = make_model_layout(config);
    EXPECT_EQ(matmul_parameters(model_sizes(config, layout)),
              static_cast<double>(layout.matmul_parameter_count()))
        << preset.name;
  }
}

}  // namespace
}  // namespace trireme::plan_command_test
