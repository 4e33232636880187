#include "trireme/cli/evaluation.h"

#include <iostream>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/text_source.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/rank_rows.h"
#include "trireme/forecast/recompute_plan.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/rope_override.h"
#include "trireme/train/base_weights.h"
#include "trireme/train/compare_ranks.h"
#include "trireme/train/data_sources.h"
#include "trireme/train/resume.h"
#include "trireme/train/training_data.h"

namespace trireme {

namespace {

constexpr const char* kOneOfTheModels = "trireme eval needs one of --model_name_or_path and --checkpoint";

}  // namespace

void EvaluationFlags::list_model(OptionList& list) {
  list.text("model_name_or_path", model, "model folder, or org/name in the Hugging Face cache");
  list.path("checkpoint", checkpoint,
            "a run's folder (its newest checkpoint) or one checkpoint, instead; of a run with LoRA the model "
            "is the one that it was trained beside, unless --model_name_or_path says where that is now");
}

void EvaluationFlags::list_engine(OptionList& list) {
  list.flag("bf16", engine.precision, Precision::bf16, "compute in bf16");
  list.flag("json", json, "print JSON");
  process.list(list);
  list_engine_options(list, engine);
}

EngineOptions EvaluationFlags::resolve(const RankIdentity& identity, int64_t longest_tokens) const {
  if (model.empty() && checkpoint.empty()) throw ConfigError(kOneOfTheModels);
  EngineOptions options = engine;
  options.rope.longest_tokens = longest_tokens;
  process.prepare(options, identity);
  return options;
}

void refuse_flags_of_backward(const OptionParser& parser) {
  std::vector<std::string> flags{"recompute", "checkpoint_every"};
  for (const KeptShareOption& option : kKeptShareOptions) flags.emplace_back(option.name);
  for (const std::string& flag : flags)
    refuse_unread_flag(parser, true, flag,
                       "in an evaluation, which keeps nothing for backward; give it to train");
}

Evaluation::Evaluation(const EvaluationFlags& flags, const OptionParser& parser, EngineOptions options)
    : options_(std::move(options)),
      guard_(options_.device),
      world_(join_run(rank_identity_from_environment(), options_, flags.process)),
      group_(world_->make_group("evaluation", {world_->identity().all_ranks()})) {
  check_sharing_ranks(parser, world_->size());
  model_dir_ = find_model(flags);
  Agreement agreement = this->agreement();
  config_ = compare_models(model_dir_, options_.lora, world_->rank(), agreement);
  flags.process.share_sequence(options_, parser, world_->common_machine_ranks(), model_dir_);
  std::filesystem::path prefix;
  agreement.all_or_none("making a folder for temporary files", [&] {
    prefix = temporary_folder() / "trireme-scratch-";
    if (reports()) scratch_.emplace(prefix, mode_t{0700});
  });
  scratch_path_ = OwnedFolder::name_of(prefix, agreement.of_rank_0(scratch_ ? scratch_->number() : 0));
}

std::filesystem::path Evaluation::find_model(const EvaluationFlags& flags) {
  Agreement agreement = this->agreement();
  const auto tell = [this](const std::string& text) { note(text); };
  std::filesystem::path model_dir;
  if (!flags.checkpoint.empty())
    checkpoint_ = find_checkpoint(flags.checkpoint, world_->identity(), agreement, tell).path;
  const std::filesystem::path& saved = checkpoint_;
  agreement.all_or_none("looking for the model", [&] {
    const bool adapted = !saved.empty() && is_adapter_folder(saved);
    if (adapted ? !options_.lora.adapter.empty() : flags.model.empty() == saved.empty())
      throw ConfigError(adapted ? "--checkpoint is of a run with LoRA, an adapter itself; leave --adapter out"
                                : kOneOfTheModels);
    model_dir = adapted               ? find_model_of_adapter(saved, flags.model)
                : flags.model.empty() ? saved
                                      : find_model_directory(flags.model);
    if (!adapted) return;
    options_.lora.adapter = saved;
    check_base_weights(saved, model_dir);
  });
  return model_dir;
}

void Evaluation::read_weights() {
  engine_ = assemble(*world_, model_dir_, options_);
}

void Evaluation::note(const std::string& text) const {
  if (reports()) std::cerr << text << std::endl;
}

std::shared_ptr<const IndexedDataset> Evaluation::open(const std::filesystem::path& input,
                                                       const SampleOptions& samples) {
  const RankIdentity& identity = world_->identity();
  if (identity.local_size < identity.size && !is_indexed_dataset(input))
    throw ConfigError(cat("the ranks are on several machines: turn ", input.string(),
                          " into a tokenized set that all of them see (trireme tokenize) and evaluate that"));
  Agreement agreement = engine_->agreement();
  const auto tell = [this](const std::string& text) { note(text); };
  TextToTokenize text{
      .input = input, .tokenizer_from = model_dir_, .prefix = scratch() / "eval", .corpus = samples.corpus};
  text.corpus.vocab_size = engine_->config().vocab_size;
  auto set = open_tokens(text, world_->rank(), agreement, tell);
  agreement.while_rank_0_works(cat("looking at ", input.string()), [&] {
    if (!is_indexed_dataset(input)) tell_left_out(TextSource({input}, text.corpus.field), text, tell);
  });
  return set;
}

void Evaluation::check_positions(int64_t longest_tokens) const {
  if (const int64_t reach = position_reach(engine_->config()); longest_tokens > reach)
    note(cat("warning: up to ", format_count(longest_tokens), " tokens see each other, and the model has ",
             format_count(reach), " positions; --rope_scaling gives it more"));
}

LoaderOptions Evaluation::loader_options(const SampleOptions& samples, int64_t sequence_tokens) {
  LoaderOptions settings = sample_loader_options(samples, engine_->config());
  settings.sequence_tokens = sequence_tokens;
  return rows_of_rank(settings, engine_->mesh());
}

}  // namespace trireme
