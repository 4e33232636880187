#include "trireme/train/check_run.h"

#include <filesystem>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sample_layout.h"
#include "trireme/base/step_tokens.h"
#include "trireme/comm/mesh.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/engine/check_options.h"
#include "trireme/model/rope_override.h"
#include "trireme/train/check_options.h"
#include "trireme/train/compare_ranks.h"
#include "trireme/train/run_directory.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Deeper in a text the run's folder is left out (data/text_source.h).
void refuse_text_among_own_files(const TrainOptions& options) {
  const RunDirectory run(options.output_dir);
  for (const auto& [flag, input] :
       {std::pair("--train_file ", options.train_file), std::pair("--eval_file ", options.eval_file)})
    for (const fs::path& own : {run.path(), run.data(), run.checkpoints()})
      if (are_one(input, own) && !is_indexed_dataset(input))
        throw ConfigError(
            cat(flag, input.string(), " is a folder to which the run itself writes (--output_dir ",
                run.path().string(),
                "), so that the text would change while it goes on; choose another --output_dir"));
}

}  // namespace

ModelConfig check_run(TrainOptions& options, const World& world, Agreement& agreement) {
  compare_ranks(options, world.rank(), agreement);
  check_options(options);
  if (are_one(options.output_dir, options.model_dir))
    throw ConfigError(
        cat("--output_dir ", options.output_dir.string(),
            " is the model's folder, whose config.json the run's would replace; choose another"));
  for (const fs::path& begun_with : {options.model_dir, options.engine.lora.adapter})
    if (!begun_with.empty() && resume_kind(options) == ResumeKind::none &&
        are_one(RunDirectory(options.output_dir).checkpoints(), begun_with / ".."))
      throw ConfigError(cat("--output_dir ", options.output_dir.string(), " holds ", begun_with.string(),
                            ", which this run begins with and would remove: give another, or go on with "
                            "that run by --resume_from_checkpoint true and more --max_steps or "
                            "--context_stages"));
  ModelConfig config = read_model_config(options.model_dir);
  check_dropout(options, config);
  check_dropout_of_adapter(options.engine.lora);
  options.samples = resolve_samples(options.samples, config, options.model_dir);
  return config;
}

StagePlan plan_run(const TrainOptions& options, const ModelConfig& config, const World& world,
                   int64_t steps) {
  const RunTopology topology{world.size(), world.common_machine_ranks(), config.num_attention_heads};
  StagePlan plan = make_stage_plan(options, topology, steps);
  if (!options.context_stages.empty() && options.max_steps > 0 && options.max_steps != plan.total_steps())
    throw ConfigError(cat("--max_steps ", options.max_steps,
                          " contradicts --context_stages, whose steps sum to ", plan.total_steps(),
                          "; leave --max_steps out"));
  for (TrainOptions& of_stage : plan.options) {
    EngineOptions& engine = of_stage.engine;
    try {
      check_options(of_stage);
      refuse_text_among_own_files(of_stage);
      check_degrees(engine.ulysses, engine.ring, world.size());
      check_engine_options(engine);
      check_heads(engine, config);
      check_packing(of_stage.samples.packing.kind, engine);
      engine.rope = pinned(engine.rope, plan.configs.empty() ? config : plan.configs.back());
      plan.configs.push_back(with_rope(config, engine.rope));
    } catch (const ConfigError& error) {
      if (!is_stage_list(options.context_stages)) throw;
      throw ConfigError(cat("stage ", plan.configs.size() + 1, " of --context_stages: ", error.what()));
    }
  }
  return plan;
}

void check_stage(const StagePlan& plan, int stage, int64_t longest_context_tokens, const World& world) {
  const auto index = static_cast<size_t>(stage);
  const ContextStage& context_stage = plan.stages[index];
  const TrainOptions& options = plan.options[index];
  const EngineOptions& engine = options.engine;
  check_step_tokens({context_stage.sequence_tokens, engine.ulysses * engine.ring,
                     options.per_device_train_batch_size, options.gradient_accumulation_steps},
                    host_memory_of_rank_bytes(engine.host_memory_limit_bytes, world.identity().local_size));
  check_positions_reach(context_stage.sequence_tokens, plan.configs[index], longest_context_tokens);
  if (engine.strict_divisible)
    check_divisible(SampleLayout{context_stage.sequence_tokens, engine.ulysses, engine.ring});
}

}  // namespace trireme
