#include "trireme/cli/eval.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/owned_folder.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/text_source.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/model/rope_override.h"
#include "trireme/train/check_options.h"
#include "trireme/train/data_sources.h"
#include "trireme/train/run_directory.h"
#include "trireme/train/training_data.h"

namespace trireme {

void EvalFlags::declare(OptionList& list) {
  list.text("model_name_or_path", model, "model folder, or org/name in the Hugging Face cache");
  list.path("checkpoint", checkpoint, "a run's folder (its newest checkpoint) or one checkpoint, instead");
  list.path("eval_file", eval_file, "text (.txt, .jsonl or a folder), or the PREFIX of a tokenized set")
      .required();
  list.real("validation_split_percentage", validation_split_percentage, from_to_below(0, 100),
            "only this end of --eval_file; 0: all of it");
  list.count("max_eval_samples", max_eval_samples, from_to(0, kMostTokens), "samples at most; 0: all");
  list.count("buckets", buckets, from_to(0, kMostTokens), "equal ranges of positions; 0: by powers of two");
  list.flag("bf16", engine.precision, Precision::bf16, "compute in bf16");
  list.flag("json", json, "print JSON");
  list_sample_options(list, samples);
  process.list(list);
  list_engine_options(list, engine);
}

EvalOptions EvalFlags::resolve(const RankIdentity& identity) const {
  if (model.empty() == checkpoint.empty())
    throw ConfigError("trireme eval loss needs one of --model_name_or_path and --checkpoint");
  EvalOptions options;
  options.model_dir = checkpoint.empty() ? find_model_directory(model) : find_checkpoint(checkpoint);
  options.samples = resolve_samples(samples, read_model_config(options.model_dir), options.model_dir);
  options.engine = engine;
  options.engine.rope.longest_tokens = options.samples.max_seq_length;
  process.prepare(options.engine, identity);
  check_packing(options.samples.packing, options.engine);
  return options;
}

namespace {

// A folder for temporary files that all ranks of this machine share, in the system's temporary folder
// (TMPDIR).
class ScratchFolder {
 public:
  // Rank 0 makes it; the others learn its name. Collective.
  ScratchFolder(int rank, Agreement& agreement) {
    std::filesystem::path prefix;
    agreement.all_or_none("making a folder for temporary files", [&] {
      prefix = temporary_folder() / "trireme-scratch-";
      if (rank == 0) folder_.emplace(prefix, mode_t{0700});
    });
    path_ = OwnedFolder::name_of(prefix, agreement.of_rank_0(folder_ ? folder_->number() : 0));
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::optional<OwnedFolder> folder_;  // rank 0
  std::filesystem::path path_;
};

int run_loss(const std::vector<std::string>& arguments) {
  EvalFlags flags;
  OptionParser parser("eval loss",
                      "Mean loss of each range of positions over a held-out set, split over ranks.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  for (const char* flag :
       {"recompute", "checkpoint_every", "keep_fraction", "keep_qkv_fraction", "keep_mlp_fraction"})
    refuse_unread_flag(parser, true, flag,
                       "in an evaluation, which keeps nothing for backward; give it to train");
  refuse_unread_text_flags(parser, {flags.eval_file});
  const RankIdentity identity = rank_identity_from_environment();
  EvalOptions options = flags.resolve(identity);
  if (identity.local_size < identity.size && !is_indexed_dataset(flags.eval_file))
    throw ConfigError(cat("the ranks are on several machines: turn ", flags.eval_file.string(),
                          " into a tokenized set that all of them see (trireme tokenize) and evaluate that"));
  const c10::DeviceGuard guard(options.engine.device);
  const auto world = join_run(identity, options.engine, flags.process);
  flags.process.share_sequence(options.engine, parser, world->common_machine_ranks(), options.model_dir);
  const auto engine = assemble(*world, options.model_dir, options.engine);
  Agreement agreement = engine->agreement();

  const ScratchFolder scratch(identity.rank, agreement);
  TokenSource source;
  const auto note = [](const std::string& text) { std::cerr << text << std::endl; };
  const TextToTokenize text{flags.eval_file,
                            options.model_dir,
                            scratch.path() / "eval",
                            options.samples.text_field,
                            options.samples.on_bad_record,
                            options.samples.append_eos,
                            engine->config().vocab_size};
  source.set = open_tokens(text, identity.rank, agreement, note);
  agreement.while_rank_0_works(cat("looking at ", text.input.string()), [&] {
    if (!is_indexed_dataset(text.input)) tell_left_out(TextSource({text.input}, text.text_field), text, note);
  });
  if (const int64_t longest = std::min(options.samples.max_seq_length,
                                       longest_context_tokens(*source.set, options.samples.packing));
      identity.rank == 0 && longest > position_reach(engine->config()))
    note(cat("warning: up to ", format_count(longest), " tokens see each other, and the model has ",
             format_count(position_reach(engine->config())), " positions; --rope_scaling gives it more"));
  source.range = flags.validation_split_percentage > 0
                     ? split_held_out(*source.set, flags.validation_split_percentage / 100).held_out
                     : whole_set(*source.set);
  LoaderOptions settings = sample_loader_options(options.samples, engine->config());
  settings.sequence_tokens = options.samples.max_seq_length;
  settings.dp_size = engine->mesh().dp_size;
  settings.dp_index = engine->mesh().dp_index;
  settings.ulysses = options.engine.ulysses;
  settings.ring = options.engine.ring;
  settings.sp_rank = engine->mesh().sp->rank();
  EvaluationLoader loader(source.set, source.range, settings);
  if (flags.max_eval_samples > 0) loader.limit_rows(flags.max_eval_samples);
  const PositionLoss result =
      evaluate_loss_by_position(*engine, loader,
                                flags.buckets > 0 ? equal_edges(options.samples.max_seq_length, flags.buckets)
                                                  : power_of_two_edges(options.samples.max_seq_length));
  Json record = result.to_json();
  record["packing"] = name_of(options.samples.packing);
  if (identity.rank == 0) std::cout << (flags.json ? record.dump(1) + "\n" : result.table()) << std::flush;
  return 0;
}

}  // namespace

int run_eval(const std::vector<std::string>& arguments) {
  const std::string usage =
      "usage: trireme eval loss --model_name_or_path DIR --eval_file PATH ... (see --help of it)\n";
  if (!arguments.empty() && asks_for_help(arguments[0])) {
    std::cout << usage;
    return 0;
  }
  if (arguments.empty() || arguments[0] != "loss")
    throw ConfigError(cat("trireme eval ", arguments.empty() ? std::string() : arguments[0],
                          ": the one evaluation that is built is 'loss': trireme eval loss --help"));
  return run_loss({arguments.begin() + 1, arguments.end()});
}

}  // namespace trireme
