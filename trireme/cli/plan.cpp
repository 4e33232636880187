#include "trireme/cli/plan.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/config_document.h"
#include "trireme/cli/deepspeed_config.h"
#include "trireme/cli/plan_output.h"
#include "trireme/cli/train.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/engine/check_options.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/make_adapters.h"
#include "trireme/plan/hardware_catalog.h"
#include "trireme/plan/plan_json.h"
#include "trireme/plan/plan_text.h"
#include "trireme/train/context_stages.h"

namespace trireme {
namespace {

constexpr auto kCount = from_to(0, kMostTokens);

HardwareProfile hardware_of(const PlanFlags& flags) {
  if (flags.gpu.empty())
    throw ConfigError(
        "trireme plan needs --gpu: a name such as h100-80gb, or a file that trireme bench hardware wrote");
  HardwareProfile hardware = read_hardware(flags.gpu);
  if (flags.gpus_per_machine > 0) hardware.devices_per_machine = static_cast<int>(flags.gpus_per_machine);
  if (flags.engine.host_memory_limit_bytes > 0)
    hardware.host_memory_bytes = flags.engine.host_memory_limit_bytes;
  if (!hardware.is_gpu) hardware.memory_bytes = hardware.rank_host_bytes(hardware.devices_per_machine);
  return hardware;
}

// Checks what is given by the rules of a run: what is not given is set to a value that stands with it.
void check_given(const PlanFlags& flags, const OptionParser& parser, const HardwareProfile& hardware,
                 const ModelConfig& config) {
  if (parser.given("memory_budget"))
    throw ConfigError(
        "--memory_budget is what --recompute auto plans with; a plan fills --memory_share of the memory");
  if (flags.allow_disk && flags.engine.offload.folder.empty())
    throw ConfigError("--allow_disk needs --offload_dir DIR, a folder on a fast local disk of the machines");
  EngineOptions engine = flags.engine;
  engine.device = hardware.is_gpu ? at::kCUDA : at::kCPU;
  if (!parser.given("zero") && engine.offload.parameters != Offload::none)
    engine.zero = ZeroStage::parameters;
  if (!parser.given("ulysses"))
    engine.ulysses = static_cast<int>(std::min<int64_t>(2, config.num_attention_heads));
  if (!parser.given("ring") && engine.ring_method == RingMethod::gather) engine.ring = 2;
  if (flags.allow_disk) engine.offload = {};
  check_engine_options(engine);
  check_heads(engine, config);
}

// Flags that the answer which is asked for does not read.
void refuse_unread(const PlanFlags& flags, const OptionParser& parser) {
  const auto refuse = [&](bool unread, const char* flag, const std::string& reader) {
    refuse_unread_flag(parser, unread, flag, reader);
  };
  if (flags.explain.asked(parser)) {
    const std::string reader = "with --explain_oom, which explains one run; give it without that";
    for (const char* flag : {"output", "html", "spec", "stages", "tokens", "target_tokens_per_second"})
      refuse(true, flag, reader);
    for (const char* flag : {"objective", "max_length"})
      refuse(flags.objective != Objective::throughput, flag, reader);
    return;
  }
  const bool stages = !flags.stages.empty();
  refuse(flags.objective == Objective::length, "max_seq_length",
         "where the longest sequence is searched; give it without --max_length");
  refuse(stages, "max_seq_length", "with --stages, which are lengths; give it without those");
  for (const char* flag : {"objective", "max_length"})
    refuse(flags.objective != Objective::throughput && stages, flag,
           "with --stages, which are lengths, all on --gpus; give it without those");
}

template <typename T, typename V>
void pin(const OptionParser& parser, const char* option, std::optional<T>& pinned, const V& value) {
  if (parser.given(option)) pinned = static_cast<T>(value);
}

PinnedOptions pinned_of(const PlanFlags& flags, const OptionParser& parser) {
  const EngineOptions& engine = flags.engine;
  PinnedOptions pinned;
  if (flags.sp) pinned.sp = static_cast<int>(*flags.sp);
  pin(parser, "ulysses", pinned.ulysses, engine.ulysses);
  pin(parser, "ring", pinned.ring, engine.ring);
  pin(parser, "zero", pinned.zero, engine.zero);
  pin(parser, "offload_params", pinned.offload_parameters, engine.offload.parameters);
  pin(parser, "offload_optimizer", pinned.offload_optimizer, engine.offload.optimizer);
  pin(parser, "offload_activations", pinned.offload_activations, engine.offload.activations);
  if (engine.recompute.policy != Recompute::automatic) pinned.recompute = engine.recompute.policy;
  pin(parser, "keep_fraction", pinned.keep_fraction, engine.recompute.keep_fraction);
  pin(parser, "keep_qkv_fraction", pinned.keep_qkv_fraction, engine.recompute.keep_qkv_fraction);
  pin(parser, "keep_mlp_fraction", pinned.keep_mlp_fraction, engine.recompute.keep_mlp_fraction);
  if (engine.recompute.checkpoint_every > 0) pinned.checkpoint_every = engine.recompute.checkpoint_every;
  pin(parser, "head_chunks", pinned.head_chunks, engine.head_chunks);
  if (engine.tile_tokens > 0) pinned.tile_tokens = engine.tile_tokens;
  if (engine.logits_tile_tokens > 0) pinned.logits_tile_tokens = engine.logits_tile_tokens;
  pinned.batch = flags.batch;
  pinned.accumulation = flags.accumulation;
  return pinned;
}

RunSettings settings_of(const PlanFlags& flags, const OptionParser& parser, const HardwareProfile& hardware) {
  const EngineOptions& engine = flags.engine;
  const auto bytes = [](at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  RunSettings settings;
  const bool given = parser.given("bf16") || parser.given("fp16");
  settings.precision = given || !hardware.is_gpu ? engine.precision : Precision::bf16;
  settings.gathers_keys = engine.ring_method == RingMethod::gather;
  settings.ring_possible = engine.sparse.dense();
  settings.strict_divisible = engine.strict_divisible;
  settings.attention = engine.attention;
  settings.update_in_backward = engine.update_in_backward;
  settings.save_in_background = engine.save_in_background;
  settings.reduce_bytes = bytes(engine.reduce_dtype);
  settings.state_bytes = bytes(engine.optimizer.state_dtype);
  settings.moments = static_cast<int>(engine.optimizer.kind->state_names.size());
  settings.whole_parameters = engine.optimizer.kind->whole_parameters;
  return settings;
}

void check_planned_positions(const PlanRequest& request, const ModelConfig& config, int64_t tokens) {
  const int64_t document = request.document_tokens > 0 ? request.document_tokens : tokens;
  check_positions_reach(tokens, config, document);
}

// What is longer than the model's positions is planned with more of them: neither bytes nor seconds depend on
// it. Empty where the positions reach.
std::string needed_rope_scaling(const PlanFlags& flags, const ModelConfig& config, int64_t tokens) {
  const int64_t document = flags.document_tokens > 0 ? std::min(flags.document_tokens, tokens) : tokens;
  if (!config.rotates || flags.engine.rope.given() || document <= position_reach(config)) return "";
  if (!lacking_original_positions(config).empty()) return "";  // check_positions_reach tells it
  return rope_scaling_to_reach(config, document);
}

// "the plan stretches them by ..."; empty for empty `how`.
std::string advice_on_positions(const ModelConfig& config, const std::string& how) {
  if (how.empty()) return "";
  return cat("the model has ", format_count(position_reach(config)),
             " positions: the plan stretches them by ", how,
             "; docs/context-extension.md says what else there is");
}

// -> a sentence that says so; empty where the positions reach.
std::string stretch_positions(PlanFlags& flags, OptionParser& parser, const ModelConfig& config) {
  const std::string scaling = needed_rope_scaling(flags, config, flags.engine.rope.longest_tokens);
  if (scaling.empty()) return "";
  parser.add_file_values({{"rope_scaling", scaling, "trireme plan"}}, Precedence::before_counts);
  return advice_on_positions(config, cat("--rope_scaling ", scaling));
}

// Of each stage by itself, so that those within the model's positions are as it was trained.
struct StageRopes {
  std::vector<std::string> scalings;  // empty where the positions reach
  std::string advice;
};
StageRopes stage_ropes(const PlanFlags& flags, const ModelConfig& config,
                       const std::vector<int64_t>& lengths) {
  StageRopes ropes;
  std::string how;
  for (const int64_t tokens : lengths) {
    const std::string& scaling = ropes.scalings.emplace_back(needed_rope_scaling(flags, config, tokens));
    if (!scaling.empty())
      how += cat(how.empty() ? "rope_scaling " : ", ", scaling, " at ", format_count(tokens), " tokens");
  }
  ropes.advice = advice_on_positions(config, how);
  return ropes;
}

// On options of the launch line that the plan does not choose.
std::vector<std::string> advice_on_line(const PlanFlags& flags, const PlannedModel& model,
                                        const std::string& stretched) {
  std::vector<std::string> advice;
  if (!stretched.empty()) advice.push_back(stretched);
  if (asks_for_dropout(flags, model))
    advice.emplace_back(
        "config.json asks for dropout, which is not built: --dropout 0 in the launch line trains without it");
  if (lacks_mask_token(flags, model))
    advice.emplace_back(
        "no tokenizer with [MASK] or <mask> lies beside config.json here: leave --mask_token_id out if the "
        "model's own has one; else give as ID what stands for masked tokens (docs/methods/encoder.md)");
  return advice;
}

// Of an option of train that the plan has not.
std::optional<std::string> answer_to_flag_of_train(const std::string& name) {
  constexpr std::pair<const char*, const char*> kAnswers[] = {
      {"gradient_checkpointing", "give --recompute full"},
      {"context_stages", "give --stages"},
      {"deepspeed", "give --ds_config FILE"},
      {"deepspeed_config", "give --ds_config FILE"},
      {"output_dir", "the launch line has it; change it there"},
      {"train_file", "the launch line has it; change it there"},
      {"device", "the launch line has it; change it there"},
      {"dropout", "a model that asks for dropout has it in the launch line"}};
  for (const auto& [option, answer] : kAnswers)
    if (name == option) return answer;
  if (!contains(Declared<TrainFlags>("train").parser.names(), name)) return std::nullopt;
  return "a plan does not choose it; add it to the launch line";
}

std::string launch_heading(bool fits) {
  return fits ? "\nlaunch:\n" : "\nlaunch, which by the forecast would run out of memory:\n";
}

int plan_of_stages(const PlanFlags& flags, const OptionParser& parser, const PlannedModel& model,
                   const PlanRequest& of_run, const ModelConfig& trained) {
  const std::vector<int64_t> lengths = parse_stage_lengths(flags.stages);
  const PlanRequest request = of_run.of_stages(std::ssize(lengths));
  flags.pages.check_stages(parser);
  const StageRopes ropes = stage_ropes(flags, trained, lengths);
  RopeOverride of_longest = flags.engine.rope;
  if (!ropes.scalings.back().empty()) of_longest.scaling = ropes.scalings.back();
  check_planned_positions(request, with_rope(trained, of_longest), lengths.back());
  std::vector<Plan> plans = plan_stages(request, lengths);
  std::string advised;
  for (const std::string& line : advice_on_line(flags, model, ropes.advice)) {
    plans.back().advice.push_back(line);
    advised += cat("\n", line, "\n");
  }
  std::vector<Planned> stages;
  Json json = Json::array();
  for (const Plan& plan : plans) {
    stages.push_back(plan.best);
    json.push_back(plan_json(request, plan));
  }
  const bool fits = std::ranges::all_of(plans, &Plan::fits);
  const std::string launch = write_stages(flags, parser, model, request, stages, ropes.scalings);
  flags.pages.write_stages(request, plans, launch);
  for (Json& stage : json) stage["launch"] = launch;
  const std::string text =
      flags.json ? "" : cat(stages_text(request, plans), advised, launch_heading(fits), launch);
  std::cout << (flags.json ? json.dump(1) + "\n" : text) << std::flush;
  return fits ? 0 : 1;
}

}  // namespace

void PlanFlags::declare(OptionList& list) {
  list.text("model", model,
            "folder with config.json, preset of trireme init, or org/name in the Hugging Face cache");
  list.text("model_name_or_path", model, "the same as --model");
  list.count("gpus", gpus, from_to(1, 1 << 16), "devices of the run, each one rank");
  list.text("gpu", gpu, "h100-80gb and the like, or a file that trireme bench hardware wrote");
  list.count("gpus_per_machine", gpus_per_machine, from_to(0, 1 << 16),
             "of one machine; 0: as the profile says");
  list.count("max_seq_length", max_seq_length, kCount, "tokens of a sample; takes 512k");
  list.count("document_tokens", document_tokens, kCount,
             "samples are packed of documents so long, which attention does not cross; 0: each is one");
  list.choice("objective", objective,
              "the most tokens a second; the longest sequence that fits; or the fewest of --gpus that hold "
              "the length, and reach the target");
  list.flag("max_length", objective, Objective::length, "the same as --objective length");
  list.text("stages", stages, "lengths, each with a plan: 32k,128k or 128k,...,1m, which doubles");
  list.count("tokens", tokens, kCount, "to train on, for hours and GPU-hours; takes 5b; 0: not told");
  list.real("target_tokens_per_second", target_tokens_per_second, from_to(0, 1e15),
            "of all devices together; 0: none");
  list.count(
      "samples_per_step", samples_per_step, from_to(0, kMostBatches),
      "of all ranks; micro-batch and accumulation are searched; 0: one for each group that shares a sample");
  list.real("memory_share", memory_share, from_to(0.01, 1),
            "of each memory that a plan may fill; of a host's at most what the engine plans with");
  list.flag("allow_disk", allow_disk, "search offload to a disk as well (--offload_dir)");
  list.path("ds_config", ds_config, "DeepSpeed's configuration, which pins what it says");
  list.path("output", output, "folder for run.yaml and ds_config.json of the plan");
  list.flag("json", json, "print JSON (docs/plan.md)");
  pages.declare(list);
  explain.declare(list);
  list_training_options(list, engine);
  list.group(OptionGroup::sequence);
  list.count("sp", sp, from_to(1, kMostRanks), "ranks that share a sample: --ulysses x --ring");
  list.group(OptionGroup::checkpoints);
  list.flag("save_in_background", engine.save_in_background,
            "a checkpoint is written while training goes on, from a copy in host memory");
  list.group(OptionGroup::schedule);
  list.count("per_device_train_batch_size", batch, from_to(1, kMostBatches),
             "samples of a micro-batch of each group");
  list.count("gradient_accumulation_steps", accumulation, from_to(1, kMostBatches),
             "micro-batches of a step");
}

std::vector<std::string> PlanFlags::read_files(OptionParser& parser) {
  std::vector<std::string> notes = explain.read_run(parser, [&](const std::string& of_run) {
    const ModelConfig config = find_planned_model(model.empty() ? of_run : model).config;
    const auto ranks = static_cast<int>(gpus);
    return RunTopology{ranks, hardware_of(*this).machine_devices(ranks), config.num_attention_heads};
  });
  pages.read_script(parser, passed_on);
  if (ds_config.empty()) return notes;
  const std::string file = ds_config.string();
  const DeepSpeedConfig config = read_deepspeed_config(read_config_document(ds_config).json, file);
  const std::vector<std::string> names = parser.names();
  std::vector<GivenValue> pinned, others;
  for (const GivenValue& value : config.values)
    (contains(names, value.option) ? pinned : others).push_back(value);
  if (config.train_batch)
    pinned.push_back({"samples_per_step", config.train_batch->value, cat(file, ": train_batch_size")});
  parser.add_file_values(pinned, Precedence::none);
  const int64_t degree = sp.value_or(int64_t{engine.ulysses} * engine.ring);
  if (config.train_batch && degree > 1 && gpus % degree == 0) {  // shows the arithmetic of a contradiction
    const auto number = [&](const std::optional<int64_t>& value, const char* name) {
      return value ? std::optional(BatchNumber{*value, name}) : std::nullopt;
    };
    resolve_batch({config.train_batch, number(batch, "train_micro_batch_size_per_gpu"),
                   number(accumulation, "gradient_accumulation_steps")},
                  {gpus, degree}, file);
  }
  // By the options of train, which know their ranges.
  Declared<TrainFlags> train("train");
  OptionParser& of_train = train.parser;
  of_train.add_file_values(others, Precedence::none);
  of_train.add_file_values(config.defaults, Precedence::before_counts);
  for (const Option& option : of_train.options())
    if (option.is_flag() && of_train.given(option.name)) passed_on.emplace_back(option.name, option.read());
  for (std::string& note : notes_of(config, file)) notes.push_back(std::move(note));
  return notes;
}

PlanRequest PlanFlags::resolve(const OptionParser& parser, const PlannedModel& planned) const {
  PlanRequest request;
  request.hardware = hardware_of(*this);
  check_given(*this, parser, request.hardware, planned.config);
  request.model_name = planned.name;
  if (!planned.config.whole_type.empty())
    request.model_name += cat(" (the language model of a ", planned.config.whole_type, ")");
  ModelLayout layout = make_model_layout(planned.config);
  const LoraConfig lora = add_adapters(layout, planned.config, engine.lora);
  if (layout.adapted())
    request.model_name +=
        cat(" with ", text_of_lora(with_few_modules_named(lora), adapted_modules(layout.adapters)));
  request.model = model_sizes(planned.config, layout);
  request.attention_pairs = [config = planned.config, sparse = engine.sparse](int64_t document) {
    return config.attention_pairs(document, sparse);
  };
  request.devices = static_cast<int>(gpus);
  request.tokens = max_seq_length;
  request.document_tokens = document_tokens;
  request.objective = objective;
  request.token_budget = tokens;
  request.target_tokens_per_second = target_tokens_per_second;
  request.samples_per_step = samples_per_step;
  request.settings = settings_of(*this, parser, request.hardware);
  request.pinned = pinned_of(*this, parser);
  request.memory_share = memory_share;
  request.allow_disk = allow_disk;
  return request;
}

int run_plan(const std::vector<std::string>& arguments) {
  PlanFlags flags;
  OptionParser parser(
      "plan",
      "The best configuration for a model, a length and GPUs, before they are rented. Options "
      "of train that are given are obeyed; the others are chosen. Exits 1 when nothing fits.");
  flags.declare(parser);
  parser.answer_unknown(answer_to_flag_of_train);
  std::vector<std::string> notes;
  if (!parser.parse(arguments, [&] { notes = flags.read_files(parser); })) return 0;
  if (flags.model.empty()) throw ConfigError("trireme plan needs --model");
  refuse_unread(flags, parser);
  refuse_unread_lora_flags(parser, flags.engine.lora);
  PlannedModel model = find_planned_model(flags.model);
  const ModelConfig trained = model.config;
  const auto stretch_to = [&](int64_t tokens) {
    flags.engine.rope.longest_tokens = tokens;
    std::string told = flags.stages.empty() ? stretch_positions(flags, parser, trained) : "";
    model.config = with_rope(trained, flags.engine.rope);
    return told;
  };
  std::string stretched =
      stretch_to(flags.stages.empty() ? flags.max_seq_length : parse_stage_lengths(flags.stages).back());
  PlanRequest request = flags.resolve(parser, model);
  for (const std::string& note : notes) std::cerr << note << "\n";
  if (flags.explain.asked(parser)) return explain_oom(flags.explain, request, flags.json);
  if (!flags.stages.empty()) return plan_of_stages(flags, parser, model, request, trained);
  if (request.objective != Objective::length) {
    if (request.tokens == 0)
      throw ConfigError("trireme plan needs --max_seq_length, --stages or --max_length");
    check_planned_positions(request, model.config, request.tokens);
  }
  Plan plan = make_plan(request);
  if (request.objective == Objective::length) stretched = stretch_to(plan.best.tokens());
  for (std::string& line : advice_on_line(flags, model, stretched)) plan.advice.push_back(std::move(line));
  const int64_t reach = position_reach(model.config);
  if (stretched.empty() && std::max(plan.best.tokens(), plan.longest_tokens) > reach)
    plan.advice.push_back(cat("the model has ", format_count(reach), " positions: longer samples need ",
                              model.config.rotates ? "--rope_scaling, or " : "",
                              "documents no longer than that"));
  const std::string launch = write_plan(flags, parser, model, request, plan.best);
  Json json = plan_json(request, plan);
  json["launch"] = launch;
  const std::string more = flags.pages.write(parser, request, plan, launch, position_reach(trained), json);
  if (flags.json)
    std::cout << json.dump(1) << std::endl;
  else
    std::cout << plan_text(request, plan) << launch_heading(plan.fits()) << launch << more << std::flush;
  return plan.fits() ? 0 : 1;
}

}  // namespace trireme
