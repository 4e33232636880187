#include "trireme/train/stage_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/field_differences.h"
#include "trireme/base/joined.h"
#include "trireme/base/nearest_name.h"
#include "trireme/base/option_value.h"
#include "trireme/comm/mesh.h"
#include "trireme/engine/sequence_degrees.h"

namespace trireme {
namespace {

Json engine_json(const EngineOptions& options) {
  return list_of_copy(options, list_training_options).config();
}

// An object in a text, in its short form where it has one: yarn:4.
std::string short_rope(const Json& value) {
  if (!value.is_string() || !value.get_ref<const std::string&>().starts_with('{')) return quotation(value);
  const Json rope = parse_json_flag(value.get<std::string>(), "--rope_scaling");
  const Json kind = rope.value("rope_type", Json()), factor = rope.value("factor", Json());
  if (!kind.is_string() || !factor.is_number()) return quotation(rope);
  return cat(quotation(kind.get<std::string>()), ":", number_text(factor.get<double>()));
}

int64_t count_of(const Json& stage, const char* key) {
  const Option count{.name = key, .type = OptionType::count};
  const Json value = parse_option_value(count, stage[key], "");
  const double number = value.get<double>();
  if (!(number >= 1 && number <= 9e15))
    throw ConfigError(cat(key, " is ", quotation(value), "; expected 1 or more"));
  return value.get<int64_t>();
}

[[noreturn]] void refuse_key(const std::string& key, bool is_of_run, const OptionList& list) {
  std::vector<std::string> names{"steps", "tokens", "sp"};
  for (const Option& option : list.options())
    if (option.of_stages) names.push_back(option.name);
  const std::string meant = is_of_run ? "" : did_you_mean(key, names);
  throw ConfigError(cat("'", quotation(key), "' is nothing that a stage sets", meant,
                        meant.empty() ? "; expected" : " Expected", " one of ", joined(names)));
}

// Sets what `stage` says in `options`.
void set_options(TrainOptions& options, const Json& stage, const RunTopology& topology) {
  const ScheduleKind schedule_before = options.lr_scheduler_type;
  OptionList list;
  list_train_options(list, options);
  for (const auto& [key, value] : stage.items()) {
    if (key == "steps" || key == "tokens" || key == "sp") continue;
    const auto option = std::ranges::find(list.options(), key, &Option::name);
    const bool is_of_run = option != list.options().end();
    if (!is_of_run || !option->of_stages) refuse_key(key, is_of_run, list);
    const Json written = parse_option_value(*option, value, "");
    option->check(written);
    option->write(written);
  }
  // Another schedule would refuse them.
  if (options.lr_scheduler_type != schedule_before && !stage.contains("lr_scheduler_kwargs"))
    options.lr_scheduler_kwargs.clear();
  // Steps of an earlier stage or of a flag would count more than this stage's share.
  if (stage.contains("warmup_ratio") && !stage.contains("warmup_steps")) options.warmup_steps = 0;
  if (!stage.contains("sp")) return;
  if (stage.contains("ulysses") || stage.contains("ring"))
    throw ConfigError("sp is the product of ulysses and ring; give it, or these two");
  const int64_t sp = count_of(stage, "sp");
  if (topology.ranks % sp != 0)
    throw ConfigError(cat("sp is ", sp, ", which does not divide the number of ranks, ", topology.ranks));
  const SequenceDegrees degrees =
      choose_degrees(static_cast<int>(sp), topology.query_heads, topology.machine_ranks);
  options.engine.ulysses = degrees.ulysses;
  options.engine.ring = degrees.ring;
}

RunFacts batch_facts(const TrainOptions& options, int ranks) {
  RunFacts facts;
  facts.options = to_json(options);
  facts.ranks = ranks;
  return facts;
}

int64_t steps_of(const Json& stage, const TrainOptions& options, const RunTopology& topology) {
  if (stage.contains("steps") == stage.contains("tokens"))
    throw ConfigError("a stage needs one of steps and tokens");
  if (stage.contains("steps")) return count_of(stage, "steps");
  const int64_t tokens = count_of(stage, "tokens");
  const double of_a_step = static_cast<double>(global_batch_samples(batch_facts(options, topology.ranks))) *
                           static_cast<double>(options.samples.max_seq_length);
  return static_cast<int64_t>(std::ceil(static_cast<double>(tokens) / of_a_step));
}

void add_stage(StagePlan& plan, const Json& stage, const TrainOptions& run, const RunTopology& topology) {
  if (!stage.is_object()) throw ConfigError(cat("it is ", quotation(stage), "; expected an object"));
  const bool first = plan.stages.empty();
  TrainOptions options = first ? run : plan.options.back();
  if (!first) options.learning_rate /= 2;
  set_options(options, stage, topology);
  check_degrees(options.engine.ulysses, options.engine.ring, topology.ranks);
  const bool sets_batch =
      stage.contains("per_device_train_batch_size") || stage.contains("gradient_accumulation_steps");
  if (!first && run.keep_global_batch && !sets_batch)
    options.gradient_accumulation_steps = accumulation_to_keep(
        batch_facts(plan.options.back(), topology.ranks), batch_facts(options, topology.ranks));
  plan.stages.push_back(next_stage(plan.stages, options.samples.max_seq_length,
                                   steps_of(stage, options, topology), stage_defaults(options)));
  plan.options.push_back(std::move(options));
  if (stage.contains("tokens") && !plan.counted_stage) plan.counted_stage = plan.count() - 1;
}

// A folder for offload to disk, and a budget for --recompute auto, are the run's: stages that have no use for
// them are not asked about them, unless none has.
void leave_out_what_other_stages_use(std::vector<TrainOptions>& stages) {
  const auto on_disk = [](const TrainOptions& of) { return uses_disk(of.engine.offload); };
  const auto planned = [](const TrainOptions& of) {
    return of.engine.recompute.policy == Recompute::automatic;
  };
  const bool any_on_disk = std::ranges::any_of(stages, on_disk);
  const bool any_planned = std::ranges::any_of(stages, planned);
  for (TrainOptions& of_stage : stages) {
    EngineOptions& engine = of_stage.engine;
    if (any_on_disk && !on_disk(of_stage)) leave_out_disk(engine.offload);
    if (any_planned && !planned(of_stage)) engine.memory_budget_bytes = 0;
  }
}

double tokens_of(const PlannedBatch& batch) {
  return static_cast<double>(batch.samples) * static_cast<double>(batch.tokens);
}

PlannedBatch micro_batch_of(const StagePlan& plan, int stage) {
  const auto at = static_cast<size_t>(stage);
  return planned_batch(plan.options[at], plan.stages[at].sequence_tokens);
}

// One engine does stages that follow each other: it is made for the most that they ask.
void plan_engines(StagePlan& plan) {
  for (int begin = 0, end = 0; begin < plan.count(); begin = end) {
    while (end < plan.count() && plan.engine_changes(begin, end).empty()) ++end;
    PlannedBatch most;
    int64_t longest_tokens = 0, micro_batches = 1;
    for (int i = begin; i < end; ++i) {
      const PlannedBatch batch = micro_batch_of(plan, i);
      longest_tokens = std::max(longest_tokens, batch.tokens);
      micro_batches = std::max(micro_batches, batch.micro_batches);
      if (tokens_of(batch) >= tokens_of(most)) most = batch;
    }
    for (int i = begin; i < end; ++i) {
      EngineOptions& engine = plan.options[static_cast<size_t>(i)].engine;
      engine.planned_batch = most;
      engine.planned_batch.micro_batches = micro_batches;
      engine.rope.longest_tokens = longest_tokens;
    }
  }
}

}  // namespace

Json parse_stage_list(const std::string& text) {
  return parse_json_flag(text, "--context_stages", {.refuse_equal_keys = true});
}

bool stages_set_schedule(const std::string& context_stages) {
  if (!is_stage_list(context_stages)) return false;
  const Json list = parse_stage_list(context_stages);
  return std::ranges::any_of(
      list, [](const Json& stage) { return stage.is_object() && stage.contains("lr_scheduler_type"); });
}

std::string StagePlan::engine_changes(int from, int to) const {
  std::string changes;
  for (const auto& [name, before, after] :
       field_differences(engine_json(options[static_cast<size_t>(from)].engine),
                         engine_json(options[static_cast<size_t>(to)].engine))) {
    // Else they differ in what the short form leaves out.
    const bool is_short = name == "rope_scaling" && short_rope(before) != short_rope(after);
    changes += cat(changes.empty() ? "" : ", ", name, " ", is_short ? short_rope(before) : quotation(before),
                   " -> ", is_short ? short_rope(after) : quotation(after));
  }
  return changes;
}

int StagePlan::longest_stage() const {
  const auto longest = std::ranges::max_element(stages, {}, &ContextStage::sequence_tokens);
  return static_cast<int>(longest - stages.begin());
}

int StagePlan::fullest_stage() const {
  int fullest = 0;
  for (int stage = 1; stage < count(); ++stage)
    if (tokens_of(micro_batch_of(*this, stage)) > tokens_of(micro_batch_of(*this, fullest))) fullest = stage;
  return fullest;
}

StagePlan make_stage_plan(const TrainOptions& run, const RunTopology& topology, int64_t steps) {
  StagePlan plan;
  const std::string& text = run.context_stages;
  if (text.empty()) {
    plan.stages = single_stage(run.samples.max_seq_length, steps, stage_defaults(run));
    if (run.max_steps <= 0) plan.counted_stage = 0;
  } else if (!is_stage_list(text)) {
    plan.stages = parse_context_stages(text, stage_defaults(run));
  } else {
    const Json list = parse_stage_list(text);
    for (const Json& stage : list) {
      try {
        add_stage(plan, stage, run, topology);
      } catch (const ConfigError& error) {
        throw ConfigError(cat("--context_stages, stage ", plan.count() + 1, ": ", error.what()));
      }
    }
    if (plan.stages.empty()) throw ConfigError("--context_stages is an empty list; expected a stage or more");
  }
  if (plan.options.empty())
    for (const ContextStage& stage : plan.stages)
      plan.options.emplace_back(run).learning_rate = stage.schedule.peak_learning_rate;
  leave_out_what_other_stages_use(plan.options);
  plan_engines(plan);
  return plan;
}

void scale_accumulation(TrainOptions& options, int64_t to, int64_t from, int done) {
  if (to == from) return;
  const char* const name = "gradient_accumulation_steps";
  const bool listed = is_stage_list(options.context_stages);
  Json list = listed ? parse_stage_list(options.context_stages) : Json::array();
  const auto sets_it = [&](size_t stage) { return list[stage].is_object() && list[stage].contains(name); };
  auto first = listed ? static_cast<size_t>(done) : 0;
  // Of tokens the steps follow from the samples of a step.
  if (std::any_of(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(first),
                  [](const Json& stage) { return stage.contains("tokens"); }))
    first = 0;
  if (first > 0 && !sets_it(first)) list[first][name] = from;
  const int64_t divisor = std::gcd(to, from);
  to /= divisor;
  from /= divisor;
  const auto scaled = [&](int64_t steps, const std::string& set_by) {
    if (steps % from != 0)
      throw ConfigError(cat(set_by, " ", steps, ": to keep the samples of a step it would be ", steps, " x ",
                            to, " / ", from, "; give a multiple of ", from, ", or another number of ranks"));
    return steps / from * to;
  };
  const auto of_stage = [&](size_t stage) { return cat("--context_stages, stage ", stage + 1, ": ", name); };
  // No stage takes the flag's number where the first one sets its own.
  if (list.empty() || (first == 0 && !sets_it(0)))
    options.gradient_accumulation_steps =
        scaled(options.gradient_accumulation_steps, list.empty() ? cat("--", name) : of_stage(0));
  for (size_t stage = first; stage < list.size(); ++stage)
    if (sets_it(stage)) list[stage][name] = scaled(count_of(list[stage], name), of_stage(stage));
  if (listed) options.context_stages = list.dump();
}

}  // namespace trireme
