#include "trireme/cli/explain_oom.h"

#include <iostream>
#include <iterator>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/input_file.h"
#include "trireme/cli/config_document.h"
#include "trireme/cli/config_files.h"
#include "trireme/cli/train.h"
#include "trireme/engine/sequence_degrees.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/forecast/tile_rules.h"
#include "trireme/plan/check_request.h"
#include "trireme/plan/memory_answer_json.h"
#include "trireme/plan/memory_answer_text.h"
#include "trireme/plan/search.h"
#include "trireme/train/metrics.h"
#include "trireme/train/run_directory.h"

namespace trireme {
namespace {

constexpr int64_t kMostMessage_bytes = int64_t{16} << 20;

std::string text_of_message(const std::string& source) {
  if (source != "-") return InputFile(source, "the text of an out-of-memory error").whole(kMostMessage_bytes);
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (static_cast<int64_t>(text.size()) > kMostMessage_bytes)
    throw DataError(
        cat("--explain_oom -: the text is longer than ", kMostMessage_bytes, " bytes; give its end"));
  return text;
}

template <typename T, typename V>
void pin_default(std::optional<T>& pinned, const V& value) {
  if (!pinned) pinned = static_cast<T>(value);
}

// Every option has a value then, but what `auto` keeps.
void pin_defaults_of_train(PlanRequest& request) {
  const TrainOptions defaults;
  PinnedOptions& pinned = request.pinned;
  if (pinned.sp && !pinned.ulysses && !pinned.ring) {
    const SequenceDegrees degrees =
        choose_degrees(*pinned.sp, request.model.heads, request.hardware.machine_devices(request.devices));
    pinned.ulysses = degrees.ulysses;
    pinned.ring = degrees.ring;
  }
  if (!pinned.sp) {
    pin_default(pinned.ulysses, defaults.engine.ulysses);
    pin_default(pinned.ring, defaults.engine.ring);
  }
  pin_default(pinned.zero, defaults.engine.zero);
  pin_default(pinned.offload_parameters, defaults.engine.offload.parameters);
  pin_default(pinned.offload_optimizer, defaults.engine.offload.optimizer);
  pin_default(pinned.offload_activations, defaults.engine.offload.activations);
  if (pinned.recompute) {  // `auto` chooses these too
    pin_default(pinned.checkpoint_every, 1);
    pin_default(pinned.keep_fraction, defaults.engine.recompute.keep_fraction);
  }
  pin_default(pinned.head_chunks, defaults.engine.head_chunks);
  pin_default(pinned.tile_tokens, tile_tokens_by_rule(request.model, request.hardware.is_gpu));
  pin_default(pinned.logits_tile_tokens,
              logits_tile_tokens_by_rule(request.model.vocab, request.hardware.is_gpu));
  if (!(request.samples_per_step > 0 && pinned.accumulation))
    pin_default(pinned.batch, defaults.per_device_train_batch_size);
  if (request.samples_per_step == 0) pin_default(pinned.accumulation, defaults.gradient_accumulation_steps);
}

// A run's options, of one of its --context_stages.
struct OptionsOfStage {
  Json options;
  std::string note;
};

OptionsOfStage options_at_fault(const TrainOptions& run, const RunTopology& topology,
                                const RunDirectory& directory) {
  const StagePlan plan = make_stage_plan(run, topology, kMostSteps);
  const std::optional<int64_t> done = last_recorded_step(directory.metrics());
  const int stage = done ? stage_of_step(plan.stages, *done) : plan.fullest_stage();
  const auto at = static_cast<size_t>(stage);
  OptionsOfStage found{to_json(plan.options[at]), ""};
  found.options["max_seq_length"] = plan.stages[at].sequence_tokens;
  found.note = cat(directory.path().string(), ": stage ", stage + 1, " of ", plan.count(), " is explained, ",
                   done ? cat("which has the step after step ", *done, ", the last one recorded")
                        : std::string("which has the most tokens a micro-batch"),
                   "; for another one give --max_seq_length, and what else it sets");
  return found;
}

}  // namespace

void ExplainFlags::declare(OptionList& list) {
  list.text("explain_oom", message,
            "why this run does not fit, and sets of changes after which it does; with the text of the error: "
            "a file, or - for what is piped in")
      .value_is_optional();
  list.path("run", run, "with --explain_oom: the folder of a run of trireme train, whose options count");
}

std::vector<std::string> ExplainFlags::read_run(
    OptionParser& parser, const std::function<RunTopology(const std::string& model)>& topology_of) const {
  if (run.empty()) return {};
  if (!asked(parser)) throw ConfigError("--run is read for --explain_oom; give that too, or leave --run out");
  const RunDirectory directory(run);
  const std::filesystem::path file = directory.config();
  Json document = read_config_document(file).json;
  std::vector<std::string> notes;
  if (!text_value(document, "context_stages", file.string(), "").empty()) {
    Declared<TrainFlags> train("train");
    train.parser.add_file_values(values_of_config(document, file.string(), train.parser), Precedence::none);
    const TrainOptions& options = train.flags.options;
    auto [of_stage, note] = options_at_fault(options, topology_of(options.model_dir.string()), directory);
    document = std::move(of_stage);
    notes.push_back(std::move(note));
  }
  if (const auto model = document.find("model_name_or_path"); model != document.end())
    document["model"] = *model;
  const std::vector<std::string> known = parser.names();
  Json of_plan = Json::object();
  for (const auto& [name, value] : document.items())
    if (contains(known, name) && name != "memory_budget") of_plan[name] = value;
  // Of the policy that `auto` chooses, which chooses the shares as well.
  if (of_plan.value("recompute", Json()) == name_of(Recompute::automatic))
    for (const KeptShareOption& option : kKeptShareOptions) of_plan.erase(option.name);
  parser.add_file_values(values_of_config(of_plan, file.string(), parser), Precedence::before_counts);
  return notes;
}

int explain_oom(const ExplainFlags& flags, PlanRequest request, bool json) {
  if (request.tokens == 0)
    throw ConfigError("--explain_oom needs --max_seq_length, the tokens of a sample of the run");
  std::optional<MemoryError> error;
  if (!flags.message.empty())
    error = read_memory_error(text_of_message(flags.message),
                              flags.message == "-" ? "standard input" : flags.message);
  pin_defaults_of_train(request);
  check_request(request, request.devices, request.tokens);
  Search search(request);
  const auto fitting = search.fastest(request.devices, request.tokens);
  const Planned run = fitting ? *fitting : search.nearest(request.devices, request.tokens);
  const bool of_device = error && error->space == MemorySpace::device && error->capacity;
  const int ranks = run.step.inputs.ranks;
  const TensorLimits limits{
      bytes_for_tensors(request, of_device ? *error->capacity : request.hardware.memory_bytes),
      memory_limits(request, ranks).host_bytes, request.hardware.machine_devices(ranks)};
  const MemoryAnswer answer =
      explain_memory(run.step, request.hardware, limits, error,
                     {.disk = request.allow_disk,
                      .optim_state_dtype = request.settings.moments > 0,
                      .update_in_backward = request.settings.precision != Precision::fp16,
                      .strict_divisible = request.settings.strict_divisible});
  if (json)
    std::cout << to_json(answer).dump(1) << std::endl;
  else
    std::cout << memory_answer_text(answer) << std::flush;
  return answer.changes.fits() || !answer.changes.sets.empty() ? 0 : 1;
}

}  // namespace trireme
