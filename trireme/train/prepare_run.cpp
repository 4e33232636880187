#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/tokenizer_vocabulary.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/base_weights.h"
#include "trireme/train/check_run.h"
#include "trireme/train/data_sources.h"
#include "trireme/train/run_in_progress.h"
#include "trireme/train/shared_output_dir.h"

namespace trireme {

LoaderOptions RunInProgress::loader_options(int stage) const {
  LoaderOptions loader = step_loader_options(
      samples_, options_of(stage), plan_.stages[static_cast<size_t>(stage)].sequence_tokens, world_.size());
  // Stages of another engine are looked at as their first rank sees them.
  if (engine_ && plan_.engine_changes(engine_stage_, stage).empty()) {
    loader.dp_index = engine_->mesh().dp_index;
    loader.sp_rank = engine_->mesh().sp->rank();
  }
  return loader;
}

void RunInProgress::prepare_stages(const ModelConfig& config) {
  if (options_.context_stages.empty()) {
    int64_t steps = options_.max_steps;
    if (steps <= 0) {
      const PackedLoader counted(data_of(0).train.set, data_of(0).train.range, loader_options(0));
      // One epoch's rows go on into the next: no step is short.
      const double wanted = std::ceil(options_.num_train_epochs * static_cast<double>(counted.rows()) /
                                      static_cast<double>(counted.rows_per_step()));
      if (wanted > static_cast<double>(kMostSteps))
        throw ConfigError(cat("--num_train_epochs ", options_.num_train_epochs, " are ", wanted,
                              " steps; a run can have ", format_count(kMostSteps)));
      steps = static_cast<int64_t>(wanted);
      const double again = wanted * static_cast<double>(counted.rows_per_step()) -
                           options_.num_train_epochs * static_cast<double>(counted.rows());
      if (again >= 1 && options_.num_train_epochs == std::floor(options_.num_train_epochs))
        note(cat("the last step takes ", format_count(static_cast<int64_t>(again)),
                 again == 1 ? " sample again, as steps are whole" : " samples again, as steps are whole"));
    }
    plan_ = plan_run(options_, config, world_, steps);
  }
  // Finds positions or a set too short for a later stage, or a stage too short for its ranks, before
  // training.
  for (int stage = 0; stage < plan_.count(); ++stage) {
    check_stage(plan_, stage, longest_context_tokens(stage), world_);
    const TrainingData& data = data_of(stage);
    const PackedLoader steps(data.train.set, data.train.range, loader_options(stage));
    if (data.held_out) check_held_out(stage);
    report_samples(stage);
    if (steps.rows_per_step() > steps.rows())
      note(cat(plan_.count() == 1 ? "" : cat("stage ", stage + 1, ": "), "a step takes ",
               format_count(steps.rows_per_step()), " samples, the set has ", format_count(steps.rows()),
               ": each step reads the set ",
               number_text(std::round(100.0 * static_cast<double>(steps.rows_per_step()) /
                                      static_cast<double>(steps.rows())) /
                           100),
               " times"));
  }
}

EvaluationLoader RunInProgress::held_out_samples(int stage, LoaderOptions settings) const {
  settings.batch_size = 1;
  settings.masked_tokens = samples_.masked_tokens;  // as `eval loss` masks
  const TokenSource& held_out = *data_of(stage).held_out;
  EvaluationLoader loader(held_out.set, held_out.range, settings);
  if (options_.max_eval_samples > 0) loader.limit_rows(options_.max_eval_samples);
  return loader;
}

void RunInProgress::check_held_out(int stage) {
  LoaderOptions settings = loader_options(stage);
  held_out_samples(stage, settings);  // finds samples too short for the ranks that share them
  const int first = resume_from_ ? stage_of_step(plan_.stages, resume_from_->step) : 0;
  const auto data = data_of_stage_.begin() + first, of_stage = data_of_stage_.begin() + stage;
  const bool was_read = stage > first && std::find(data, of_stage, *of_stage) != of_stage;
  if (stage < first || (was_read && options_.max_eval_samples == 0)) return;
  settings.ulysses = settings.ring = 1;
  settings.sp_rank = 0;
  settings.dp_size = world_.size();
  settings.dp_index = world_.rank();
  agreement_.all_or_none("reading the held-out samples", [&] {
    EvaluationLoader loader = held_out_samples(stage, settings);
    while (loader.next()) {
    }
  });
}

// Every rank reads the index, so that a disk that fails ends all of them.
void RunInProgress::report_samples(int stage) {
  const TrainingData& data = data_of(stage);
  const int64_t tokens = plan_.stages[static_cast<size_t>(stage)].sequence_tokens;
  const std::string of_stage = plan_.count() == 1 ? "" : cat("stage ", stage + 1, ": ");
  for (const std::string& text : sample_notes(data.train, options_.samples.packing, tokens))
    note(of_stage + text);
  if (!data.held_out || data.held_out->set == data.train.set) return;
  for (const std::string& text : sample_notes(*data.held_out, options_.samples.packing, tokens))
    note(cat(of_stage, "--eval_file: ", text));
}

EngineOptions RunInProgress::engine_options(int stage) const {
  EngineOptions engine = options_of(stage).engine;
  plan_with_documents(engine, data_of(stage).train, options_.samples.packing);
  return engine;
}

int64_t RunInProgress::longest_context_tokens(int stage) const {
  const TrainingData& data = data_of(stage);
  const auto longest = [&](const IndexedDataset& set) {
    return trireme::longest_context_tokens(set, options_.samples.packing,
                                           plan_.stages[static_cast<size_t>(stage)].sequence_tokens);
  };
  const int64_t of_training = longest(*data.train.set);
  if (!data.held_out || data.held_out->set == data.train.set) return of_training;
  return std::max(of_training, longest(*data.held_out->set));
}

void RunInProgress::look_at_data(const ModelConfig& config) {
  if (reports())
    if (const auto text = tell_tokens_without_rows(options_.model_dir, config.vocab_size); !text.empty())
      note(text);
  std::vector<std::filesystem::path> files;
  for (const TrainOptions& options : plan_.options) {
    const auto found = std::ranges::find(files, options.train_file);
    data_of_stage_.push_back(static_cast<size_t>(found - files.begin()));
    if (found != files.end()) continue;
    files.push_back(options.train_file);
    sources_.push_back(look_at_sources(options, config.vocab_size,
                                       resume_from_ ? std::optional(resume_from_->path) : std::nullopt,
                                       agreement_, notes()));
  }
}

void RunInProgress::add_sources_of_stages(Json& data) const {
  if (sources_.size() == 1) return;
  for (const DataSources& sources : sources_) data[kSavedStages].push_back(sources.train_source);
}

void RunInProgress::keep_lora(const LoraConfig& lora) {
  if (lora.rank == 0) return;
  const LoraOptions kept = lora_options_of(lora, options_.engine.lora.seed);
  options_.engine.lora = kept;
  for (TrainOptions& of_stage : plan_.options) of_stage.engine.lora = kept;
}

void RunInProgress::prepare() {
  world_.activity().set_phase(RankPhase::preparing);
  const ModelConfig config = check_run(options_, world_, agreement_);
  if (options_.tensorboard && options_.logging_dir.empty()) options_.logging_dir = run_.events();
  samples_ = sample_loader_options(options_.samples, config);
  // Checks options before any file of an earlier run changes. Without stages, the data decides the steps.
  plan_ = plan_run(options_, config, world_);
  agreement_.all_or_none(cat("locking ", run_.path().string()), [&] {
    if (reports()) lock_.emplace(run_.path(), world_.identity().launch_id, notes());
  });
  check_output_dir_is_shared(run_.path(), lock_, world_.rank(), agreement_);
  resume_from_ = choose_checkpoint(options_, run_, world_.identity(), agreement_, notes());
  find_continued();
  agreement_.all_or_none("looking at the checkpoint's adapters", [&] {
    if (resume_from_ && !options_.engine.lora.adapter.empty() && is_adapter_folder(resume_from_->path))
      keep_lora(read_adapter_config(resume_from_->path).config);
  });
  agreement_.all_or_none(cat("preparing ", run_.path().string()), [&] {
    if (!reports()) return;
    const bool would_replace = !resume_from_ && !run_.list().empty();
    if (would_replace && !options_.overwrite_output_dir)
      throw ConfigError(cat(run_.path().string(),
                            " holds checkpoints of an earlier run: go on with --resume_from_checkpoint true, "
                            "choose another --output_dir, or give --overwrite_output_dir to remove them"));
    // The owner is uncertain: torchrun without --rdzv-id gives no name that all attempts share.
    if (would_replace && world_.identity().restarted() && world_.identity().launch_is_guessed)
      throw ConfigError(cat(
          run_.path().string(),
          " holds checkpoints, and a restarted attempt removes none, for an earlier attempt of this launch "
          "may have written them: begin a new launch with --overwrite_output_dir to remove them, or with "
          "--resume_from_checkpoint true to go on; under torchrun give --rdzv-id a name of the launch"));
    run_.prepare();
  });
  look_at_data(config);
  if (resume_from_) compare_with_checkpoint(config);
  for (const DataSources& sources : sources_)
    data_.push_back(open_training_data(sources, options_.validation_split_percentage, world_.rank(),
                                       agreement_, notes()));
  agreement_.all_or_none("looking at how the chats are written", [&] {
    if (reports()) find_chats();
  });
  prepare_stages(config);
  engine_stage_ = resume_from_ ? stage_of_step(plan_.stages, resume_from_->step) : 0;
  EngineOptions engine = engine_options(engine_stage_);
  engine.read_weights = !resume_from_ && continued_.empty();
  agreement_.all_or_none(cat("reading ", options_.model_dir.string()), [&] {
    if (engine.lora.given()) base_weights_ = describe_weights(options_.model_dir);
  });
  engine_ = assemble(world_, options_.model_dir, engine);
  keep_lora(engine_->lora());
  time_left_.emplace(first_step_flops());
  if (engine.read_weights) report_weights();
  if (resume_from_) resume();
  if (!continued_.empty()) begin_from_continued();
  constexpr double kSecondsAProduct = 0.15;
  peak_ = options_.peak_tflops > 0
              ? PeakRate{options_.peak_tflops * 1e12, "given"}
              : peak_rate(options_.engine.device, options_.engine.precision, kSecondsAProduct);
  peak_flops_ = agreement_.sum(peak_.flops_per_second);
  memory_watch_.emplace(options_.engine.device, memory_room_bytes(options_.engine, world_.identity()),
                        agreement_);
}

std::vector<double> RunInProgress::first_step_flops() const {
  std::vector<double> flops;
  for (int stage = 0; stage < plan_.count(); ++stage) {
    const TokenSource& tokens = data_of(stage).train;
    flops.push_back(step_flops(stage, PackedLoader(tokens.set, tokens.range, loader_options(stage)).next()));
  }
  return flops;
}

}  // namespace trireme
