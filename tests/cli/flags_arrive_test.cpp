// Every flag of every command reaches the entry of the resolved options that it names, and no other. The flags are the parser's
// own list: one that has no case here fails the test.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/cli/bench.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/export.h"
#include "trireme/cli/info.h"
#include "trireme/cli/init.h"
#include "trireme/cli/tokenize.h"
#include "trireme/cli/train.h"
#include "trireme/cli/verify.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "bench/comm/bench_comm.h"
#include "tests/engine/tiny_model.h"

namespace fs = std::filesystem;

namespace trireme::flags_arrive_test {
namespace {

// --flag words..., given beside what the command needs and `beside`, changes the resolved entries to `expected`.
struct Case {
  std::string flag;
  std::vector<std::string> words;
  Json expected;
  std::vector<std::string> beside = {};
};
using Cases = std::vector<Case>;

// A command with its flags declared anew, so that the defaults are those of the program.
template <typename Flags>
class Declared {
 public:
  Declared() { flags.declare(parser); }
  Flags flags;
  OptionParser parser{"test", ""};
};

// What a command is told, whole, and what it needs at least.
struct Command {
  std::function<std::vector<std::string>()> names;
  std::function<Json(const std::vector<std::string>&)> resolved;
  std::map<std::string, std::string> required;
  Cases cases;
};

template <typename Flags, typename ToJson>
Command command_of(std::map<std::string, std::string> required, Cases cases, ToJson to_json) {
  return {[] { return Declared<Flags>().parser.names(); },
          [to_json](const std::vector<std::string>& words) {
            const int threads = at::get_num_threads();
            Declared<Flags> declared;
            declared.parser.parse(words);
            Json json = to_json(declared.flags, declared.parser);
            at::set_num_threads(threads);
            return json;
          },
          std::move(required), std::move(cases)};
}

constexpr int kMachineRanks = 8;

// With the names that config.json of a run has; its other entries are defaults.
Json json_of(const EngineOptions& engine) {
  TrainOptions options;
  options.engine = engine;
  Json json = to_json(options);
  json["precision"] = name_of(engine.precision);
  json["optimizer_seed"] = engine.optimizer.seed;
  json["planned_tokens"] = engine.planned_batch.tokens;
  json["planned_batch"] = engine.planned_batch.samples;
  return json;
}

Json with_engine_flags(Json json, const EngineFlags& flags) {
  json["threads"] = at::get_num_threads();
  json["ddp_timeout"] = flags.ddp_timeout;
  return json;
}

std::string path_text(const fs::path& path) {
  return path.string();
}

std::vector<std::string> texts(const std::vector<fs::path>& paths) {
  std::vector<std::string> all;
  std::transform(paths.begin(), paths.end(), std::back_inserter(all), path_text);
  return all;
}

Cases joined(const std::vector<Cases>& parts) {
  Cases all;
  for (const Cases& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Cases engine_cases() {
  const std::vector<std::string> disk{"--offload_activations", "disk"};
  return {
      {"device", {"cpu"}, {{"device", "cpu"}}},
      {"attention", {"reference"}, {{"attention", "reference"}}},
      {"recompute", {"full"}, {{"recompute", "full"}}},
      {"memory_budget", {"60g"}, {{"memory_budget", int64_t{60} << 30}}},
      {"host_memory_limit", {"100g"}, {{"host_memory_limit", int64_t{100} << 30}}},
      {"checkpoint_every", {"3"}, {{"checkpoint_every", 3}}},
      {"keep_fraction", {"0.25"}, {{"keep_fraction", 0.25}}},
      {"zero", {"2"}, {{"zero", 2}}},
      {"offload_params", {"cpu"}, {{"offload_params", "cpu"}}},
      {"offload_activations", {"cpu"}, {{"offload_activations", "cpu"}}},
      {"offload_dir", {"/fast"}, {{"offload_dir", "/fast"}}, disk},
      {"offload_limit", {"5g"}, {{"offload_limit", int64_t{5} << 30}}, disk},
      {"sp", {"8"}, {{"ulysses", 4}, {"ring", 2}}},  // the model has 4 heads
      {"ulysses", {"3"}, {{"ulysses", 3}}},
      {"ring", {"5"}, {{"ring", 5}}},
      {"ring_method", {"gather"}, {{"ring_method", "gather"}}},
      {"head_chunks", {"4"}, {{"head_chunks", 4}}},
      {"sparse_block_tokens", {"192"}, {{"sparse_block_tokens", 192}}},
      {"sparse_local_blocks", {"7"}, {{"sparse_local_blocks", 7}}},
      {"sparse_global_blocks", {"6"}, {{"sparse_global_blocks", 6}}},
      {"sparse_stride_blocks", {"5"}, {{"sparse_stride_blocks", 5}}},
      {"strict_divisible", {}, {{"strict_divisible", true}}},
      {"tile_tokens", {"33"}, {{"tile_tokens", 33}}},
      {"logits_tile_tokens", {"44"}, {{"logits_tile_tokens", 44}}},
      {"threads", {"3"}, {{"threads", 3}}},
      {"ddp_timeout", {"77"}, {{"ddp_timeout", 77}}},
  };
}

Cases update_cases() {
  return {
      {"bf16", {}, {{"bf16", true}, {"precision", "bf16"}}},
      {"fp16", {}, {{"fp16", true}, {"precision", "fp16"}}},
      {"optim", {"sgd"}, {{"optim", "sgd"}}},
      {"optim_state_dtype", {"bf16"}, {{"optim_state_dtype", "bf16"}}},
      {"reduce_dtype", {"bf16"}, {{"reduce_dtype", "bf16"}}},
      {"offload_optimizer", {"cpu"}, {{"offload_optimizer", "cpu"}}},
      {"update_in_backward", {}, {{"update_in_backward", true}}},
  };
}

Cases data_cases(const std::string& file_flag) {
  return {
      {file_flag, {"other.txt"}, {{file_flag, "other.txt"}}},
      {"text_field", {"body"}, {{"text_field", "body"}}},
      {"no_append_eos", {}, {{"append_eos", false}}},
      {"packing", {"concat"}, {{"packing", "concat"}}},
      {"max_seq_length", {"96"}, {{"max_seq_length", 96}}},
  };
}

class FlagsArrive : public ::testing::Test {
 protected:
  FlagsArrive() {
    testing::write_tiny_model(folder_ / "model", testing::tiny_llama_config());
    testing::write_tiny_model(folder_ / "other", testing::tiny_llama_config());
    testing::write_tiny_model(folder_ / "bert", testing::tiny_bert_config());
  }

  std::string model(const char* name = "model") const { return (folder_ / name).string(); }

  Command train() const {
    const Cases own{
        {"model_name_or_path", {model("other")}, {{"model_name_or_path", model("other")}}},
        {"mlm_probability", {"0.3"}, {{"mlm_probability", 0.3}}},
        {"mask_token_id", {"7"}, {{"mask_token_id", 7}}},
        {"eval_file", {"held_out.txt"}, {{"eval_file", "held_out.txt"}}},
        {"validation_split_percentage", {"7.5"}, {{"validation_split_percentage", 7.5}}},
        {"context_stages", {"64:3"}, {{"context_stages", "64:3"}}},
        {"max_steps", {"13"}, {{"max_steps", 13}}},
        {"num_train_epochs", {"1.5"}, {{"num_train_epochs", 1.5}}},
        {"per_device_train_batch_size", {"5"}, {{"per_device_train_batch_size", 5}}},
        {"gradient_accumulation_steps", {"6"}, {{"gradient_accumulation_steps", 6}}},
        {"learning_rate", {"3e-3"}, {{"learning_rate", 3e-3}}},
        {"lr_scheduler_type", {"cosine"}, {{"lr_scheduler_type", "cosine"}}},
        {"lr_scheduler_kwargs", {"{\"a\": 1}"}, {{"lr_scheduler_kwargs", "{\"a\": 1}"}}},
        {"warmup_ratio", {"0.2"}, {{"warmup_ratio", 0.2}}},
        {"warmup_steps", {"9"}, {{"warmup_steps", 9.0}}},
        {"weight_decay", {"0.03"}, {{"weight_decay", 0.03}}},
        {"adam_beta1", {"0.8"}, {{"adam_beta1", 0.8}}},
        {"adam_beta2", {"0.7"}, {{"adam_beta2", 0.7}}},
        {"adam_epsilon", {"1e-3"}, {{"adam_epsilon", 1e-3}}},
        {"dropout", {"0"}, {{"dropout", 0.0}}},
        {"max_grad_norm", {"0.4"}, {{"max_grad_norm", 0.4}}},
        {"gradient_checkpointing", {}, {{"recompute", "full"}}},
        {"output_dir", {"out"}, {{"output_dir", "out"}}},
        {"overwrite_output_dir", {}, {{"overwrite_output_dir", true}}},
        {"resume_from_checkpoint", {"auto"}, {{"resume_from_checkpoint", "auto"}}},
        {"resume_with_new_data", {}, {{"resume_with_new_data", true}}},
        {"keep_global_batch", {}, {{"keep_global_batch", true}}},
        {"save_steps", {"11"}, {{"save_steps", 11}}},
        {"save_total_limit", {"12"}, {{"save_total_limit", 12}}},
        {"logging_steps", {"14"}, {{"logging_steps", 14}}},
        {"eval_steps", {"15"}, {{"eval_steps", 15}}},
        {"max_eval_samples", {"16"}, {{"max_eval_samples", 16}}},
        {"seed", {"17"}, {{"seed", 17}, {"optimizer_seed", 17}}},
        {"report_to", {"none"}, {{"report_to", "none"}}},
        {"logging_dir", {"events"}, {{"logging_dir", "events"}}},
        {"memory_report", {}, {{"memory_report", true}}},
        {"peak_tflops", {"1.25"}, {{"peak_tflops", 1.25}}},
    };
    return command_of<TrainFlags>(
        {{"model_name_or_path", model()}, {"train_file", "text.txt"}},
        joined({engine_cases(), update_cases(), data_cases("train_file"), own}),
        [](const TrainFlags& flags, const OptionParser& parser) {
          TrainOptions options = flags.resolve(parser, {});
          set_degrees(options.engine, flags.engine.degrees(parser, kMachineRanks, options.model_dir));
          Json json = json_of(options.engine);
          json.update(to_json(options));
          return with_engine_flags(json, flags.engine);
        });
  }

  Command eval() const {
    const Cases own{
        {"model_name_or_path", {model("other")}, {{"model", model("other")}}},
        {"validation_split_percentage", {"7.5"}, {{"validation_split_percentage", 7.5}}},
        {"max_eval_samples", {"16"}, {{"max_eval_samples", 16}}},
        {"buckets", {"3"}, {{"buckets", 3}}},
        {"bf16", {}, {{"bf16", true}, {"precision", "bf16"}}},
        {"json", {}, {{"json", true}}},
    };
    return command_of<EvalFlags>(
        {{"model_name_or_path", model()}, {"eval_file", "text.txt"}},
        joined({engine_cases(), data_cases("eval_file"), own}),
        [](const EvalFlags& flags, const OptionParser& parser) {
          EvalOptions options = flags.resolve(parser, {});
          EXPECT_EQ(options.engine.purpose, Purpose::evaluation);
          set_degrees(options.engine, flags.engine.degrees(parser, kMachineRanks, options.model_dir));
          Json json = json_of(options.engine);
          json.update({{"model", options.model_dir.string()},
                       {"eval_file", flags.data.file.string()},
                       {"text_field", flags.data.text_field},
                       {"append_eos", !flags.data.no_append_eos},
                       {"packing", name_of(options.samples.packing)},
                       {"max_seq_length", flags.data.max_seq_length},
                       {"validation_split_percentage", flags.validation_split_percentage},
                       {"max_eval_samples", flags.max_eval_samples},
                       {"buckets", flags.buckets},
                       {"json", flags.json}});
          return with_engine_flags(json, flags.engine);
        });
  }

  Command verify() const {
    const Cases own{
        {"model", {model("other")}, {{"model", model("other")}}},
        {"reference", {"other.safetensors"}, {{"reference", "other.safetensors"}}},
        {"precision", {"bf16"}, {{"precision", "bf16"}, {"bf16", true}}},
        {"tolerance", {"0.5"}, {{"tolerance", 0.5}}},
        {"ranks_as_threads", {"6"}, {{"ranks_as_threads", 6}}},
        {"rows", {"21"}, {{"rows", 21}}},
        {"json", {}, {{"json", true}}},
    };
    return command_of<VerifyFlags>(
        {{"model", model()}, {"reference", "r.safetensors"}}, joined({engine_cases(), own}),
        [](const VerifyFlags& flags, const OptionParser& parser) {
          EngineOptions options = flags.resolve(parser, {});
          set_degrees(options, flags.engine.degrees(parser, kMachineRanks, flags.model));
          Json json = json_of(options);
          json.update({{"model", flags.model},
                       {"reference", flags.reference.string()},
                       {"tolerance", flags.tolerance},
                       {"ranks_as_threads", flags.ranks_as_threads},
                       {"rows", flags.rows},
                       {"json", flags.json}});
          return with_engine_flags(json, flags.engine);
        });
  }

  Command bench_step() const {
    const Cases own{
        {"model", {model("other")}, {{"model", model("other")}}},
        {"seq", {"96"}, {{"seq", 96}, {"planned_tokens", 96}}},
        {"batch", {"5"}, {{"batch", 5}, {"planned_batch", 5}}},
        {"steps", {"11"}, {{"steps", 11}}},
        {"warmup", {"3"}, {{"warmup", 3}}},
        {"seed", {"17"}, {{"token_seed", 17}}},
        {"learning_rate", {"3e-2"}, {{"rate", 3e-2}}},
        {"weight_decay", {"0.03"}, {{"weight_decay", 0.03}}},
        {"json", {}, {{"json", true}}},
        {"memory_report", {}, {{"report", true}}},
    };
    return command_of<BenchStepFlags>({{"model", model()}}, joined({engine_cases(), update_cases(), own}),
                                      [](const BenchStepFlags& flags, const OptionParser& parser) {
                                        EngineOptions options = flags.resolve({});
                                        const StepRateOptions measure = flags.resolved_measure();
                                        set_degrees(options,
                                                    flags.engine.degrees(parser, kMachineRanks, flags.model));
                                        Json json = json_of(options);
                                        json.update({{"model", flags.model},
                                                     {"seq", measure.sequence_tokens},
                                                     {"batch", measure.batch},
                                                     {"steps", measure.steps},
                                                     {"warmup", measure.warmup},
                                                     {"token_seed", measure.seed},
                                                     {"rate", measure.learning_rate},
                                                     {"json", flags.json},
                                                     {"report", flags.memory_report}});
                                        return with_engine_flags(json, flags.engine);
                                      });
  }

  static Command bench_matmul() {
    return command_of<BenchMatmulFlags>({},
                                        {{"seconds", {"0.01"}, {{"seconds", 0.01}}},
                                         {"device", {"cpu"}, {{"device", "cpu"}}},
                                         {"threads", {"3"}, {{"threads", 3}}},
                                         {"json", {}, {{"json", true}}}},
                                        [](const BenchMatmulFlags& flags, const OptionParser& /*parser*/) {
                                          Json json = json_of(flags.engine.resolve({}));
                                          json.update({{"seconds", flags.seconds}, {"json", flags.json}});
                                          return with_engine_flags(json, flags.engine);
                                        });
  }

  Command bench_comm() const {
    return command_of<BenchCommFlags>({},
                                      {{"model_name_or_path", {model()}, {{"model", model()}}},
                                       {"heads", {"12"}, {{"heads", 12}}},
                                       {"kv_heads", {"6"}, {{"kv_heads", 6}}},
                                       {"head_dim", {"32"}, {{"head_dim", 32}}},
                                       {"tokens", {"96"}, {{"tokens", 96}}},
                                       {"batch", {"5"}, {{"batch", 5}}},
                                       {"methods", {"ring"}, {{"methods", "ring"}}},
                                       {"ulysses", {"3"}, {{"hybrid_ulysses", 3}}},
                                       {"ring", {"4"}, {{"hybrid_ring", 4}}},
                                       {"ring_method", {"gather"}, {{"hybrid_method", "gather"}}},
                                       {"head_chunks", {"2"}, {{"chunks", 2}}},
                                       {"dtype", {"bf16"}, {{"dtype", "bf16"}}},
                                       {"repeats", {"9"}, {{"repeats", 9}}},
                                       {"ranks_as_threads", {"6"}, {{"ranks_as_threads", 6}}},
                                       {"device", {"cpu"}, {{"device", "cpu"}}},
                                       {"attention", {"reference"}, {{"attention", "reference"}}},
                                       {"threads", {"3"}, {{"threads", 3}}},
                                       {"ddp_timeout", {"77"}, {{"ddp_timeout", 77}}},
                                       {"json", {}, {{"json", true}}}},
                                      [](const BenchCommFlags& flags, const OptionParser& /*parser*/) {
                                        Json json = json_of(flags.engine.resolve({}));
                                        json.update({{"model", flags.model},
                                                     {"heads", flags.heads},
                                                     {"kv_heads", flags.kv_heads},
                                                     {"head_dim", flags.head_dim},
                                                     {"tokens", flags.tokens},
                                                     {"batch", flags.batch},
                                                     {"methods", flags.methods},
                                                     {"hybrid_ulysses", flags.ulysses},
                                                     {"hybrid_ring", flags.ring},
                                                     {"hybrid_method", flags.ring_method},
                                                     {"chunks", flags.head_chunks},
                                                     {"dtype", flags.dtype},
                                                     {"repeats", flags.repeats},
                                                     {"ranks_as_threads", flags.ranks_as_threads},
                                                     {"json", flags.json}});
                                        return with_engine_flags(json, flags.engine);
                                      });
  }

  static Command init() {
    return command_of<InitFlags>(
        {{"preset", "tiny"}, {"out", "model"}},
        {{"preset", {"small"}, {{"preset", "small"}}},
         {"out", {"other"}, {{"out", "other"}}},
         {"seed", {"17"}, {{"seed", 17}}},
         {"dtype", {"bfloat16"}, {{"dtype", "bfloat16"}}},
         {"set", {"a=1", "b=2"}, {{"set", {"a=1", "b=2"}}}},
         {"overwrite", {}, {{"overwrite", true}}}},
        [](const InitFlags& flags, const OptionParser& /*parser*/) {
          return Json{
              {"preset", flags.preset}, {"out", flags.out.string()},     {"seed", flags.seed},
              {"dtype", flags.dtype},   {"set", texts(flags.overrides)}, {"overwrite", flags.overwrite}};
        });
  }

  static Command tokenize() {
    return command_of<TokenizeFlags>(
        {{"tokenizer", "t"}, {"input", "a"}, {"output", "set"}},
        {{"tokenizer", {"org/name"}, {{"tokenizer", "org/name"}}},
         {"input", {"b", "c"}, {{"input", {"b", "c"}}}},
         {"output", {"other"}, {{"output", "other"}}},
         {"overwrite", {}, {{"overwrite", true}}},
         {"field", {"body"}, {{"field", "body"}}},
         {"no_append_eos", {}, {{"append", false}}},
         {"threads", {"3"}, {{"threads", 3}}}},
        [](const TokenizeFlags& flags, const OptionParser& /*parser*/) {
          return Json{{"tokenizer", flags.tokenizer},    {"input", texts(flags.inputs)},
                      {"output", flags.output.string()}, {"overwrite", flags.overwrite},
                      {"field", flags.corpus().field},   {"append", flags.corpus().append_end_of_text},
                      {"threads", flags.threads}};
        });
  }

  static Command export_() {
    return command_of<ExportFlags>({{"checkpoint", "run"}, {"out", "model"}},
                                   {{"checkpoint", {"other"}, {{"checkpoint", "other"}}},
                                    {"out", {"elsewhere"}, {{"out", "elsewhere"}}},
                                    {"dtype", {"float16"}, {{"dtype", "float16"}}},
                                    {"overwrite", {}, {{"overwrite", true}}}},
                                   [](const ExportFlags& flags, const OptionParser& /*parser*/) {
                                     return Json{{"checkpoint", flags.checkpoint.string()},
                                                 {"out", flags.out.string()},
                                                 {"dtype", flags.dtype},
                                                 {"overwrite", flags.overwrite}};
                                   });
  }

  static Command info() {
    return command_of<InfoFlags>(
        {}, {{"json", {}, {{"json", true}}}, {"measure", {"false"}, {{"measure", false}}}},
        [](const InfoFlags& flags, const OptionParser& /*parser*/) {
          return Json{{"json", flags.json}, {"measure", flags.measure}};
        });
  }

  // `tested_elsewhere` need more than their own value.
  static void check(const Command& command, const std::set<std::string>& tested_elsewhere = {}) {
    std::set<std::string> with_case = tested_elsewhere;
    for (const Case& one : command.cases) {
      SCOPED_TRACE("--" + one.flag);
      with_case.insert(one.flag);
      std::vector<std::string> words = one.beside;
      for (const auto& [name, value] : command.required)
        if (name != one.flag) words.insert(words.end(), {"--" + name, value});
      std::vector<std::string> without = words;
      if (command.required.contains(one.flag))
        without.insert(without.end(), {"--" + one.flag, command.required.at(one.flag)});
      words.push_back("--" + one.flag);
      words.insert(words.end(), one.words.begin(), one.words.end());
      const Json before = command.resolved(without), after = command.resolved(words);
      for (const auto& [name, value] : after.items())
        EXPECT_EQ(value, one.expected.contains(name) ? one.expected[name] : before[name]) << name;
      for (const auto& [name, value] : one.expected.items()) {
        ASSERT_TRUE(after.contains(name)) << name;
        // A machine without a GPU computes on the CPU anyway.
        EXPECT_TRUE(one.flag == "device" || before[name] != value) << name << " is so by default";
      }
    }
    for (const std::string& name : command.names())
      EXPECT_TRUE(with_case.contains(name))
          << "--" << name << " has no case: nobody knows whether it arrives";
  }

  testing::TemporaryFolder folder_;
};

TEST_F(FlagsArrive, of_train) {
  check(train());
}

TEST_F(FlagsArrive, of_eval) {
  check(eval(), {"checkpoint", "mlm_probability", "mask_token_id"});
}

TEST_F(FlagsArrive, of_eval_that_are_for_encoders) {
  const Command command = eval();
  const auto resolve = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--model_name_or_path", model("bert"), "--eval_file", "t"});
    Declared<EvalFlags> declared;
    declared.parser.parse(words);
    return declared.flags.resolve(declared.parser, {}).samples;
  };
  EXPECT_EQ(resolve({"--mask_token_id", "7"}).mask_token_id, 7);
  EXPECT_EQ(resolve({"--mask_token_id", "7", "--mlm_probability", "0.3"}).mlm_probability, 0.3);
}

TEST_F(FlagsArrive, of_verify) {
  check(verify());
}

TEST_F(FlagsArrive, of_bench) {
  check(bench_step());
  check(bench_matmul());
  check(bench_comm());
}

TEST_F(FlagsArrive, of_commands_without_an_engine) {
  check(init());
  check(tokenize());
  check(export_());
  check(info());
}

// From the options to the engine that computes by them.
TEST_F(FlagsArrive, at_the_engine_that_train_assembles) {
  const std::vector<std::string> words{"--model_name_or_path",
                                       model(),
                                       "--train_file",
                                       "t",
                                       "--device",
                                       "cpu",
                                       "--attention",
                                       "reference",
                                       "--recompute",
                                       "full",
                                       "--checkpoint_every",
                                       "2",
                                       "--zero",
                                       "3",
                                       "--tile_tokens",
                                       "33",
                                       "--logits_tile_tokens",
                                       "44",
                                       "--strict_divisible",
                                       "--offload_params",
                                       "cpu",
                                       "--offload_optimizer",
                                       "cpu",
                                       "--offload_activations",
                                       "cpu",
                                       "--bf16",
                                       "--optim_state_dtype",
                                       "bf16",
                                       "--reduce_dtype",
                                       "bf16",
                                       "--weight_decay",
                                       "0.03",
                                       "--adam_beta1",
                                       "0.8",
                                       "--adam_beta2",
                                       "0.7",
                                       "--adam_epsilon",
                                       "1e-3",
                                       "--max_grad_norm",
                                       "0.4",
                                       "--seed",
                                       "17",
                                       "--sparse_block_tokens",
                                       "64",
                                       "--sparse_local_blocks",
                                       "2",
                                       "--sparse_global_blocks",
                                       "3",
                                       "--sparse_stride_blocks",
                                       "4"};
  const int threads = at::get_num_threads();
  Declared<TrainFlags> declared;
  declared.parser.parse(words);
  const TrainOptions options = declared.flags.resolve(declared.parser, {});
  at::set_num_threads(threads);
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, options.model_dir, options.engine);
    EXPECT_EQ(json_of(engine->options()), json_of(options.engine));
  });
}

}  // namespace
}  // namespace trireme::flags_arrive_test
