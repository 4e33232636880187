// Every flag of every command reaches the entry of the resolved options that it names, and no other. The
// flags are the command's own list.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/cli/bench.h"
#include "trireme/cli/bench_hardware.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/export.h"
#include "trireme/cli/info.h"
#include "trireme/cli/init.h"
#include "trireme/cli/mix.h"
#include "trireme/cli/new_project.h"
#include "trireme/cli/plan.h"
#include "trireme/cli/tokenize.h"
#include "trireme/cli/train.h"
#include "trireme/cli/validate.h"
#include "trireme/cli/verify.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "bench/comm/bench_comm.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/other_value.h"
#include "tests/support/words_of.h"

namespace fs = std::filesystem;

namespace trireme::flags_arrive_test {
namespace {

// --flag words..., given beside what the command needs, changes the resolved entries to `expected`.
struct Case {
  std::string flag;
  std::vector<std::string> words;
  Json expected;
};
using Cases = std::vector<Case>;

// What a command is told, whole, and what it needs at least.
struct Command {
  std::function<Json(const std::vector<std::string>&)> resolved;
  std::map<std::string, std::string> required;
  Cases cases;
};

// `cases` are those of flags that another name, more than their own value or a value of meaning needs; every
// other flag is given a value that it does not have.
template <typename Flags, typename ToJson>
Command command_of(std::map<std::string, std::string> required, Cases cases, ToJson to_json,
                   const std::set<std::string>& tested_elsewhere = {}) {
  std::set<std::string> with_case = tested_elsewhere;
  for (const Case& one : cases) with_case.insert(one.flag);
  const Declared<Flags> declared("test");
  for (const Option& option : declared.parser.options()) {
    if (!option.is_flag() || with_case.contains(option.name)) continue;
    const Json value = testing::other_value(option);
    cases.push_back({option.name, {testing::word_of(value)}, {{option.name, value}}});
  }
  return {[to_json](const std::vector<std::string>& words) {
            const int threads = at::get_num_threads();
            Declared<Flags> given("test");
            given.parser.parse(words);
            Json json = to_json(given.flags, given.parser);
            at::set_num_threads(threads);
            return json;
          },
          std::move(required), std::move(cases)};
}

const std::set<std::string> kTrainTestedElsewhere{"config", "deepspeed", "deepspeed_config"};
const std::set<std::string> kEvalTestedElsewhere{"checkpoint"};
constexpr int kMachineRanks = 8;

// With the names that config.json of a run has; its other entries are defaults.
Json json_of(const EngineOptions& engine, const SampleOptions& samples = {}) {
  TrainOptions options;
  options.engine = engine;
  options.samples = samples;
  Json json = to_json(options);
  json["precision"] = name_of(engine.precision);
  json["optimizer_seed"] = engine.optimizer.seed;
  json["planned_tokens"] = engine.planned_batch.tokens;
  json["planned_batch"] = engine.planned_batch.samples;
  return json;
}

Json with_process(Json json, const ProcessOptions& process) {
  json["threads"] = at::get_num_threads();
  json["ddp_timeout"] = process.timeout().count() / 1000;
  json["ddp_backend"] = name_of(process.ddp_backend);
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
  return {
      {"device", {"cpu"}, {{"device", "cpu"}}},
      {"host_memory_limit", {"100g"}, {{"host_memory_limit", int64_t{100} << 30}}},
      {"sp", {"8"}, {{"ulysses", 4}, {"ring", 2}}},  // the model has 4 heads
      {"threads", {"3"}, {{"threads", 3}}},
      {"ddp_timeout", {"77"}, {{"ddp_timeout", 77}}},
      {"ddp_backend", {"gloo"}, {{"ddp_backend", "gloo"}}},
  };
}

Cases update_cases() {
  return {
      {"bf16", {}, {{"bf16", true}, {"precision", "bf16"}}},
      {"fp16", {}, {{"fp16", true}, {"precision", "fp16"}}},
  };
}

const Case kNoAppendEos{"no_append_eos", {}, {{"append_eos", false}}};
const Case kAppendEos{"append_eos", {"false"}, {{"append_eos", false}}};
const Case kLongDocuments{
    "long_documents", {"skip", "--packing", "none"}, {{"long_documents", "skip"}, {"packing", "none"}}};

class FlagsArrive : public ::testing::Test {
 protected:
  FlagsArrive() {
    testing::write_tiny_model(folder_ / "model", testing::tiny_llama_config());
    testing::write_tiny_model(folder_ / "other", testing::tiny_llama_config());
  }

  std::string model(const char* name = "model") const { return (folder_ / name).string(); }

  Cases train_cases() const {
    const Cases own{
        kAppendEos,
        kNoAppendEos,
        kLongDocuments,
        {"model_name_or_path", {model("other")}, {{"model_name_or_path", model("other")}}},
        {"dropout", {"0"}, {{"dropout", 0.0}}},
        {"gradient_checkpointing", {}, {{"recompute", "full"}}},
        {"metric_for_best_model",
         {"loss", "--eval_file", "held-out.txt", "--eval_steps", "250"},
         {{"metric_for_best_model", "eval_loss"}, {"eval_file", "held-out.txt"}, {"eval_steps", 250}}},
        {"eval_steps", {"9", "--eval_file", "e.txt"}, {{"eval_steps", 9}, {"eval_file", "e.txt"}}},
        {"max_eval_samples",
         {"7", "--eval_file", "e.txt"},
         {{"max_eval_samples", 7}, {"eval_file", "e.txt"}}},
        {"spike_factor", {"2.5", "--on_spike", "warn"}, {{"spike_factor", 2.5}, {"on_spike", "warn"}}},
        {"spike_window", {"9", "--on_spike", "warn"}, {{"spike_window", 9}, {"on_spike", "warn"}}},
        {"spike_steps", {"5", "--on_spike", "warn"}, {{"spike_steps", 5}, {"on_spike", "warn"}}},
        {"seed", {"17"}, {{"seed", 17}, {"optimizer_seed", 17}}},
    };
    return joined({engine_cases(), update_cases(), own});
  }
  static Json json_of_train(const TrainFlags& flags, const OptionParser& parser) {
    TrainOptions options = flags.resolve({});
    flags.process.share_sequence(options.engine, parser, kMachineRanks, options.model_dir);
    Json json = json_of(options.engine);
    json.update(to_json(options));
    json["dry_run"] = flags.dry_run;
    return with_process(json, flags.process);
  }

  Command train() const {
    return command_of<TrainFlags>({{"model_name_or_path", model()}, {"train_file", "text.txt"}},
                                  train_cases(), json_of_train, kTrainTestedElsewhere);
  }

  Command validate() const {
    return command_of<ValidateFlags>(
        {{"model_name_or_path", model()}, {"train_file", "text.txt"}}, train_cases(),
        [](const ValidateFlags& flags, const OptionParser& parser) {
          Json json = json_of_train(flags.train, parser);
          json.update({{"length", flags.how.sequence_tokens},
                       {"steps", flags.how.steps},
                       {"tolerance", flags.how.tolerance},
                       {"least_matmul_share", flags.how.least_matmul_share},
                       {"matmul_seconds", flags.how.matmul_seconds},
                       {"skip_one_rank", flags.how.skip_one_rank},
                       {"json", flags.json}});
          return json;
        },
        kTrainTestedElsewhere);
  }

  static Command new_project() {
    return command_of<NewProjectFlags>({}, {},
                                       [](const NewProjectFlags& flags, const OptionParser& /*parser*/) {
                                         return Json{{"variant", name_of(flags.variant)}};
                                       });
  }

  Command eval() const {
    const Cases own{
        kAppendEos,
        kNoAppendEos,
        kLongDocuments,
        {"model_name_or_path", {model("other")}, {{"model", model("other")}}},
        {"bf16", {}, {{"bf16", true}, {"precision", "bf16"}}},
    };
    return command_of<EvalFlags>(
        {{"model_name_or_path", model()}, {"eval_file", "text.txt"}}, joined({engine_cases(), own}),
        [](const EvalFlags& flags, const OptionParser& parser) {
          EngineOptions options = flags.resolve({});
          EXPECT_EQ(options.purpose, Purpose::evaluation);
          flags.process.share_sequence(options, parser, kMachineRanks, flags.model);
          Json json = json_of(options, flags.samples);
          json.update({{"model", flags.model},
                       {"eval_file", flags.eval_file.string()},
                       {"validation_split_percentage", flags.validation_split_percentage},
                       {"max_eval_samples", flags.max_eval_samples},
                       {"buckets", flags.buckets},
                       {"json", flags.json}});
          return with_process(json, flags.process);
        },
        kEvalTestedElsewhere);
  }

  Command verify() const {
    const Cases own{
        {"model", {model("other")}, {{"model", model("other")}}},
        {"precision", {"bf16"}, {{"precision", "bf16"}, {"bf16", true}}},
    };
    return command_of<VerifyFlags>(
        {{"model", model()}, {"reference", "r.safetensors"}}, joined({engine_cases(), own}),
        [](const VerifyFlags& flags, const OptionParser& parser) {
          EngineOptions options = flags.resolve({});
          flags.process.share_sequence(options, parser, kMachineRanks, flags.model);
          Json json = json_of(options);
          json.update({{"model", flags.model},
                       {"reference", flags.reference.string()},
                       {"tolerance", flags.tolerance.value_or(0)},
                       {"ranks_as_threads", flags.ranks_as_threads.value_or(0)},
                       {"rows", flags.rows},
                       {"json", flags.json}});
          return with_process(json, flags.process);
        });
  }

  Command bench_step() const {
    const Cases own{
        {"model", {model("other")}, {{"model", model("other")}}},
        {"seq", {"96"}, {{"seq", 96}, {"planned_tokens", 96}}},
        {"batch", {"5"}, {{"batch", 5}, {"planned_batch", 5}}},
        {"seed", {"17"}, {{"token_seed", 17}}},
        {"learning_rate", {"3e-2"}, {{"rate", 3e-2}}},
        {"memory_report", {}, {{"report", true}}},
        {"predict", {"machine.json"}, {{"predict", "machine.json"}}},
    };
    return command_of<BenchStepFlags>({{"model", model()}}, joined({engine_cases(), update_cases(), own}),
                                      [](const BenchStepFlags& flags, const OptionParser& parser) {
                                        EngineOptions options = flags.resolve({});
                                        flags.process.share_sequence(options, parser, kMachineRanks,
                                                                     flags.model);
                                        Json json = json_of(options);
                                        json.update({{"model", flags.model},
                                                     {"seq", flags.measure.sequence_tokens},
                                                     {"batch", flags.measure.batch},
                                                     {"steps", flags.measure.steps},
                                                     {"warmup", flags.measure.warmup},
                                                     {"token_seed", flags.measure.seed},
                                                     {"rate", flags.measure.learning_rate},
                                                     {"predict", flags.predict.string()},
                                                     {"json", flags.json},
                                                     {"report", flags.memory_report}});
                                        if (flags.simulate_ranks)
                                          json["simulate_ranks"] = *flags.simulate_ranks;
                                        return with_process(json, flags.process);
                                      });
  }

  static Command bench_matmul() {
    return command_of<BenchMatmulFlags>(
        {}, {{"device", {"cpu"}, {{"device", "cpu"}}}, {"threads", {"3"}, {{"threads", 3}}}},
        [](const BenchMatmulFlags& flags, const OptionParser& /*parser*/) {
          EngineOptions options;
          flags.process.prepare(options, {});
          Json json = json_of(options);
          json.update({{"seconds", flags.seconds}, {"json", flags.json}});
          return with_process(json, flags.process);
        });
  }

  static Command bench_hardware() {
    return command_of<BenchHardwareFlags>(
        {},
        {{"device", {"cpu"}, {{"device", "cpu"}}},
         {"threads", {"3"}, {{"threads", 3}}},
         {"ddp_timeout", {"77"}, {{"ddp_timeout", 77}}},
         {"ddp_backend", {"gloo"}, {{"ddp_backend", "gloo"}}},
         {"out", {"machine.json"}, {{"out", "machine.json"}}},
         {"offload_dir", {"disk"}, {{"disk", "disk"}}}},
        [](const BenchHardwareFlags& flags, const OptionParser& /*parser*/) {
          EngineOptions options;
          flags.process.prepare(options, {});
          Json json = json_of(options);
          json.update({{"seconds", flags.measure.seconds},
                       {"disk", flags.measure.offload_dir.string()},
                       {"out", flags.out.string()},
                       {"json", flags.json}});
          return with_process(json, flags.process);
        });
  }

  Command bench_comm() const {
    return command_of<BenchCommFlags>(
        {},
        {{"model_name_or_path", {model()}, {{"model", model()}}},
         {"ulysses", {"3"}, {{"hybrid_ulysses", 3}}},
         {"ring", {"4"}, {{"hybrid_ring", 4}}},
         {"ring_method", {"gather"}, {{"hybrid_method", "gather"}}},
         {"head_chunks", {"2"}, {{"chunks", 2}}},
         {"threads", {"3"}, {{"threads", 3}}},
         {"device", {"cpu"}, {{"device", "cpu"}}}},
        [](const BenchCommFlags& flags, const OptionParser& /*parser*/) {
          EngineOptions options = flags.engine;
          flags.process.prepare(options, {});
          Json json = json_of(options);
          json.update({{"model", flags.model},
                       {"heads", flags.heads},
                       {"kv_heads", flags.kv_heads},
                       {"head_dim", flags.head_dim},
                       {"tokens", flags.tokens},
                       {"batch", flags.batch},
                       {"methods", flags.methods},
                       {"hybrid_ulysses", flags.ulysses},
                       {"hybrid_ring", flags.ring},
                       {"hybrid_method", name_of(flags.ring_method)},
                       {"chunks", flags.head_chunks},
                       {"dtype", dtype_name(flags.dtype)},
                       {"repeats", flags.repeats},
                       {"ranks_as_threads", flags.ranks_as_threads.value_or(-1)},
                       {"json", flags.json}});
          return with_process(json, flags.process);
        });
  }

  // What it is asked for; what becomes of that is in plan_test.cpp.
  static Command plan() {
    const Cases own{
        {"save_in_background", {}, {{"save_in_background", true}}},
        {"max_length", {}, {{"objective", "length"}}},
        {"bf16", {}, {{"bf16", true}, {"precision", "bf16"}}},
        {"fp16", {}, {{"fp16", true}, {"precision", "fp16"}}},
        {"host_memory_limit", {"100g"}, {{"host_memory_limit", int64_t{100} << 30}}},
    };
    return command_of<PlanFlags>(
        {{"model", "tiny"}}, own,
        [](const PlanFlags& flags, const OptionParser& /*parser*/) {
          Json json = json_of(flags.engine);
          json.update({{"model", flags.model},
                       {"gpus", flags.gpus},
                       {"gpu", flags.gpu},
                       {"gpus_per_machine", flags.gpus_per_machine},
                       {"max_seq_length", flags.max_seq_length},
                       {"document_tokens", flags.document_tokens},
                       {"objective", name_of(flags.objective)},
                       {"stages", flags.stages},
                       {"tokens", flags.tokens},
                       {"target_tokens_per_second", flags.target_tokens_per_second},
                       {"samples_per_step", flags.samples_per_step},
                       {"memory_share", flags.memory_share},
                       {"allow_disk", flags.allow_disk},
                       {"ds_config", flags.ds_config.string()},
                       {"output", flags.output.string()},
                       {"html", flags.pages.html.string()},
                       {"spec", flags.pages.spec.string()},
                       {"script", flags.pages.script.string()},
                       {"explain_oom", flags.explain.message},
                       {"run", flags.explain.run.string()},
                       {"json", flags.json},
                       {"sp", flags.sp.value_or(0)},
                       {"per_device_train_batch_size", flags.batch.value_or(0)},
                       {"gradient_accumulation_steps", flags.accumulation.value_or(0)}});
          return json;
        },
        {"model_name_or_path"});
  }

  static Command init() {
    return command_of<InitFlags>({{"preset", "tiny"}, {"out", "model"}},
                                 {{"preset", {"small"}, {{"preset", "small"}}},
                                  {"out", {"other"}, {{"out", "other"}}},
                                  {"seed", {"17"}, {{"seed", 17}}},
                                  {"dtype", {"bfloat16"}, {{"dtype", "bfloat16"}}},
                                  {"set", {"a=1", "b=2"}, {{"set", {"a=1", "b=2"}}}},
                                  {"overwrite", {}, {{"overwrite", true}}}},
                                 [](const InitFlags& flags, const OptionParser& /*parser*/) {
                                   return Json{{"preset", flags.preset},
                                               {"out", flags.out.string()},
                                               {"seed", flags.seed},
                                               {"dtype", flags.dtype},
                                               {"set", texts(flags.overrides)},
                                               {"rope_scaling", flags.rope.scaling},
                                               {"rope_theta", flags.rope.theta.value_or(0)},
                                               {"overwrite", flags.overwrite}};
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
          return Json{
              {"tokenizer", flags.tokenizer},    {"input", texts(flags.inputs)},
              {"output", flags.output.string()}, {"overwrite", flags.overwrite},
              {"field", flags.corpus.field},     {"append", flags.corpus.append_end_of_text},
              {"threads", flags.threads},        {"on_bad_record", name_of(flags.corpus.on_bad_record)}};
        });
  }

  static Command mix() {
    return command_of<MixFlags>({{"set", "a"}, {"output", "set"}},
                                {{"set", {"b", "c:2"}, {{"set", {"b", "c:2"}}}},
                                 {"output", {"other"}, {{"output", "other"}}},
                                 {"tokens", {"2g"}, {{"tokens", int64_t{2} << 30}}},
                                 {"seed", {"17"}, {{"seed", 17}}},
                                 {"overwrite", {}, {{"overwrite", true}}}},
                                [](const MixFlags& flags, const OptionParser& /*parser*/) {
                                  return Json{{"set", texts(flags.sets)},
                                              {"output", flags.output.string()},
                                              {"tokens", flags.how.tokens},
                                              {"seed", flags.how.seed},
                                              {"overwrite", flags.overwrite}};
                                });
  }

  static Command export_() {
    const auto resolved = [](const ExportFlags& flags, const OptionParser& /*parser*/) {
      Json found{{"checkpoint", flags.checkpoint.string()}, {"out", flags.out.string()}};
      found.update({{"dtype", flags.dtype}, {"merge", flags.merge}, {"model", flags.model}});
      found.update({{"overwrite", flags.overwrite}, {"into", flags.into}});
      return found;
    };
    return command_of<ExportFlags>({{"checkpoint", "run"}, {"out", "model"}},
                                   {{"checkpoint", {"other"}, {{"checkpoint", "other"}}},
                                    {"out", {"elsewhere"}, {{"out", "elsewhere"}}},
                                    {"dtype", {"float16"}, {{"dtype", "float16"}}},
                                    {"merge", {}, {{"merge", true}}},
                                    {"model_name_or_path", {"base"}, {{"model", "base"}}},
                                    {"overwrite", {}, {{"overwrite", true}}}},
                                   resolved);
  }

  static Command info() {
    return command_of<InfoFlags>(
        {}, {{"json", {}, {{"json", true}}}, {"measure", {"false"}, {{"measure", false}}}},
        [](const InfoFlags& flags, const OptionParser& /*parser*/) {
          return Json{{"json", flags.json}, {"measure", flags.measure}};
        });
  }

  static void check(const Command& command) {
    for (const Case& one : command.cases) {
      SCOPED_TRACE("--" + one.flag);
      std::vector<std::string> words;
      for (const auto& [name, value] : command.required)
        if (name != one.flag) words.insert(words.end(), {"--" + name, value});
      std::vector<std::string> without = words;
      if (command.required.contains(one.flag))
        without.insert(without.end(), {"--" + one.flag, command.required.at(one.flag)});
      words.push_back("--" + one.flag);
      words.insert(words.end(), one.words.begin(), one.words.end());
      const Json before = command.resolved(without), after = command.resolved(words);
      for (const auto& [name, value] : after.items())
        EXPECT_EQ(value, one.expected.contains(name) ? one.expected[name] : before.value(name, Json()))
            << name;
      for (const auto& [name, value] : one.expected.items()) {
        ASSERT_TRUE(after.contains(name)) << name;
        // A machine without a GPU computes on the CPU anyway.
        EXPECT_TRUE(one.flag == "device" || before.value(name, Json()) != value)
            << name << " is so by default";
      }
    }
  }

  testing::TemporaryFolder folder_;
};

TEST_F(FlagsArrive, of_train_and_validate) {
  check(train());
  check(validate());
}

TEST_F(FlagsArrive, of_eval) {
  check(eval());
}

TEST_F(FlagsArrive, of_verify) {
  check(verify());
}

TEST_F(FlagsArrive, of_bench) {
  check(bench_step());
  check(bench_matmul());
  check(bench_hardware());
  check(bench_comm());
}

TEST_F(FlagsArrive, of_commands_without_an_engine) {
  check(new_project());
  check(init());
  check(plan());
  check(tokenize());
  check(mix());
  check(export_());
  check(info());
}

// From the options to the engine that computes by them.
TEST_F(FlagsArrive, at_the_engine_that_train_assembles) {
  std::vector<std::string> words = testing::words_of(
      "--train_file t --device cpu --attention reference --recompute full --checkpoint_every 2 --zero 3 "
      "--tile_tokens 33 --logits_tile_tokens 44 --strict_divisible --offload_params cpu --offload_optimizer "
      "cpu --offload_activations cpu --bf16 --optim_state_dtype bf16 --reduce_dtype bf16 --weight_decay 0.03 "
      "--adam_beta1 0.8 --adam_beta2 0.7 --adam_epsilon 1e-3 --max_grad_norm 0.4 --seed 17 "
      "--sparse_block_tokens 64 --sparse_local_blocks 2 --sparse_global_blocks 3 --sparse_stride_blocks 4");
  words.insert(words.end(), {"--model_name_or_path", model()});
  const int threads = at::get_num_threads();
  Declared<TrainFlags> declared("train");
  declared.parser.parse(words);
  const TrainOptions options = declared.flags.resolve({});
  at::set_num_threads(threads);
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, options.model_dir, options.engine);
    EXPECT_EQ(json_of(engine->options()), json_of(options.engine));
  });
}

}  // namespace
}  // namespace trireme::flags_arrive_test
