#include "trireme/train/dry_run.h"

#include <algorithm>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/sizes.h"
#include "trireme/comm/agreement.h"
#include "trireme/device/peak_memory.h"
#include "trireme/engine/assemble.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/kernels/backward_heads.h"
#include "trireme/measure/synthetic_tokens.h"
#include "trireme/train/check_run.h"
#include "trireme/train/memory_watch.h"

namespace trireme {
namespace {

constexpr int64_t kNearestKeys = 1024;
constexpr int64_t kUpdates = 2;
constexpr int64_t kMostTries = 20;  // steps that fp16's loss scale makes idle are tried again

// Two documents a sample, or as many as a table of positions needs; none where attention crosses documents.
std::vector<Documents> documents_of_sample(const TrainOptions& options, const ModelConfig& config,
                                           int64_t tokens) {
  if (options.samples.packing.kind == Packing::concat) return {};
  const int64_t reach = config.rotates ? tokens : config.max_position_embeddings;
  const int64_t of_one = std::clamp<int64_t>((tokens + 1) / 2, 1, std::max<int64_t>(1, reach));
  std::vector<int64_t> ends{0};
  while (ends.back() < tokens) ends.push_back(std::min(tokens, ends.back() + of_one));
  return std::vector<Documents>(static_cast<size_t>(options.per_device_train_batch_size),
                                Documents(std::move(ends)));
}

StepBatches synthetic_step(Engine& engine, const TrainOptions& options, int64_t tokens, int64_t batches) {
  Mesh& mesh = engine.mesh();
  StepBatches step;
  for (int64_t i = 0; i < batches; ++i) {
    const auto sample =
        static_cast<uint64_t>((i * mesh.dp_size + mesh.dp_index) * options.per_device_train_batch_size);
    step.push_back(synthetic_batch(static_cast<uint64_t>(options.seed), sample,
                                   options.per_device_train_batch_size, engine.config().vocab_size,
                                   {tokens, options.engine.ulysses, options.engine.ring}, mesh.sp->rank()));
    step.back().documents = documents_of_sample(options, engine.config(), tokens);
  }
  return step;
}

DryRun::Rank memory_of_rank(Engine& engine, const DryRun& run, int64_t room_bytes) {
  const MemoryState memory = engine.memory_account()->state();
  ForecastInputs as_run = engine.forecast_inputs(run.samples, run.sequence_tokens);
  const MemoryForecast forecast = memory_forecast(as_run);
  if (run.nearest_keys > 0) as_run.documents_alone = false;  // no document is causal within a window
  return {memory.peak_total_bytes,
          forecast.peak_total_bytes,
          memory.host.peak_total_bytes,
          forecast.host.total(),
          peak_memory_bytes(engine.options().device),
          forecast.peak_total_bytes - memory_forecast(as_run).peak_total_bytes,
          room_bytes};
}

}  // namespace

int64_t nearest_keys_of_dry_run(const EngineOptions& options, const ModelConfig& config) {
  if (options.device.is_cpu()) return kNearestKeys;
  const bool knows_windows = options.attention == AttentionKernel::automatic ||
                             options.attention == AttentionKernel::flash ||
                             options.attention == AttentionKernel::cudnn_packed;
  const int64_t widest = std::max(config.heads().width, config.heads_of_full_attention().width);
  const bool by_flash = knows_windows && options.precision != Precision::fp32 && config.score_cap == 0 &&
                        widest <= kMostFlashWidth;
  return by_flash ? kNearestKeys : 0;
}

const DryRun::Rank& DryRun::fullest() const {
  return *std::ranges::max_element(ranks, {}, &Rank::share);
}

std::string DryRun::text() const {
  std::string text = cat("dry run: ", updates, " steps of ", micro_batches, " x ", samples, " x ",
                         format_count(sequence_tokens), " tokens, nothing written\n", engine, "\n");
  char line[256];
  std::snprintf(line, sizeof(line), "%6s%16s%16s%16s%16s\n", "rank", "tensors", "forecast", "process",
                "of its room");
  text += line;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Rank& memory = ranks[rank];
    std::snprintf(line, sizeof(line), "%6zu%16s%16s%16s%14.1f %%\n", rank,
                  format_bytes(memory.tensors_bytes).c_str(), format_bytes(memory.forecast_bytes).c_str(),
                  format_bytes(memory.process_bytes).c_str(), 100 * memory.share());
    text += line;
    if (!on_gpu || memory.host_tensors_bytes + memory.host_forecast_bytes == 0) continue;
    std::snprintf(line, sizeof(line), "%6s%16s%16s\n", "host",
                  format_bytes(memory.host_tensors_bytes).c_str(),
                  format_bytes(memory.host_forecast_bytes).c_str());
    text += line;
  }
  text += cat("memory fits: at most ", format_percent(fullest().share()), " of ",
              format_bytes(fullest().room_bytes), on_gpu ? " of a GPU" : " of host memory a rank");
  if (fullest().share() > allowed_share)
    text += cat(", which is above ", format_percent(allowed_share, 0),
                ": a longer step or fragments may end the run");
  if (const int64_t bytes = fullest().documents_alone_bytes; bytes > 0)
    text += cat(", with ", format_bytes(bytes),
                " that the forecast adds for long documents, which the run computes alone");
  text += cat(
      "\nnot shown: ",
      stages_not_shown.empty() ? "" : cat("stages with other engines (", joined(stages_not_shown), "); "),
      "time and loss",
      nearest_keys > 0 ? cat(" (each query saw the nearest ", format_count(nearest_keys), " keys)") : "",
      ", the data (tokens were synthetic), evaluation and checkpoints, and what fragments of a long run add",
      on_gpu && nearest_keys > 0 ? "; attention was FlashAttention-2's, and what the kernel of whole samples "
                                   "needs for itself was not seen"
                                 : "",
      updates < kUpdates ? "; the update, for fp16's loss scale fell at every step" : "", "\n");
  return text;
}

DryRun dry_run(World& world, const TrainOptions& asked) {
  world.activity().set_phase(RankPhase::preparing);
  const auto group = world.make_group("dry run", {world.identity().all_ranks()});
  Agreement agreement(*group, asked.engine.device);
  TrainOptions options = asked;
  const ModelConfig of_folder = check_run(options, world, agreement);
  const StagePlan plan = plan_run(options, of_folder, world);
  const int stage = plan.fullest_stage();
  options = plan.options[static_cast<size_t>(stage)];
  DryRun run;
  for (int other = 0; other < plan.count(); ++other)
    if (!plan.engine_changes(stage, other).empty()) run.stages_not_shown.push_back(other + 1);
  run.on_gpu = !options.engine.device.is_cpu();
  run.sequence_tokens = plan.stages[static_cast<size_t>(stage)].sequence_tokens;
  run.samples = options.per_device_train_batch_size;
  run.micro_batches = std::min<int64_t>(2, options.gradient_accumulation_steps);
  // The data, which has the longest document, is not read.
  check_stage(plan, stage, options.samples.packing.kind == Packing::concat ? run.sequence_tokens : 0, world);
  run.nearest_keys = nearest_keys_of_dry_run(options.engine, of_folder);
  options.engine.nearest_keys = run.nearest_keys;
  const int64_t room_bytes = memory_room_bytes(options.engine, world.identity());
  const auto engine = assemble(world, options.model_dir, options.engine);
  run.engine = engine->description();
  run.allowed_share = allowed_memory_share(*engine);
  world.activity().set_phase(RankPhase::training);
  const OnNonfinite skip =
      options.engine.update_in_backward ? OnNonfinite::stop : OnNonfinite::skip;  // the numbers mean nothing
  for (int64_t tries = 0; run.updates < kUpdates && tries < kMostTries; ++tries) {
    const StepBatches batches = synthetic_step(*engine, options, run.sequence_tokens, run.micro_batches);
    if (!engine->train_step(batches, /*learning_rate=*/0, skip).skipped) ++run.updates;
  }
  run.peak = engine->memory_account()->state().peak;
  run.ranks = agreement.gather_one(memory_of_rank(*engine, run, room_bytes));
  return run;
}

}  // namespace trireme
