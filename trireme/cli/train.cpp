#include "trireme/cli/train.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iostream>
#include <unistd.h>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/changed_options.h"
#include "trireme/cli/continued_options.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/stop_signal.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/train/check_options.h"
#include "trireme/train/dry_run.h"
#include "trireme/train/resume_rules.h"
#include "trireme/train/stage_plan.h"
#include "trireme/train/trainer.h"

namespace trireme {
namespace {

// In columns, before each line. A launcher on a terminal says how wide it is.
std::function<int()> columns_of_output() {
  if (terminal_columns(STDOUT_FILENO) > 0) return [] { return terminal_columns(STDOUT_FILENO); };
  return
      [columns = static_cast<int>(environment_integer("TRIREME_TERMINAL").value_or(0))] { return columns; };
}

// A restart on fewer machines (launch --elastic) takes as many samples a step as the first attempt.
void keep_global_batch_of(int first_ranks, int ranks, TrainOptions& options,
                          std::vector<std::string>& notes) {
  RunFacts now, first;
  now.options = first.options = to_json(options);
  now.ranks = ranks;
  first.ranks = first_ranks;
  const int64_t samples = global_batch_samples(first);
  const int64_t before = options.gradient_accumulation_steps;
  scale_accumulation(options, samples, global_batch_samples(now));
  const int64_t after = options.gradient_accumulation_steps;
  notes.push_back(cat("ranks ", first_ranks, " -> ", ranks, " (--elastic): ",
                      after == before ? cat("each stage keeps the samples of a step")
                                      : cat("--gradient_accumulation_steps ", before, " -> ", after,
                                            " keeps the ", samples, " samples of a step")));
}

// Where it does not, it has those of the run.
bool first_stage_sets_degrees(const std::string& context_stages) {
  if (!is_stage_list(context_stages)) return false;
  const Json list = parse_stage_list(context_stages);
  return !list.empty() && std::ranges::any_of(std::array{"sp", "ulysses", "ring"},
                                              [&](const char* name) { return list.front().contains(name); });
}

}  // namespace

void TrainFlags::declare(OptionList& list) {
  files.list(list);
  list.flag("dry_run", dry_run,
            "two steps at the longest length with attention cut short, to see that memory fits; nothing is "
            "written")
      .not_in_config();
  process.list(list);
  list_train_options(list, options);
}

std::vector<std::string> TrainFlags::read_files(OptionParser& parser, int ranks) {
  std::vector<std::string> notes = files.add_to(parser, ranks);
  if (!options.continue_run.empty()) {
    const int64_t sharing = sharing_ranks(parser);
    for (std::string& note : add_continued_options(parser, options.continue_run))
      notes.push_back(std::move(note));
    if (files.batch_follows && sharing_ranks(parser) != sharing)
      throw ConfigError(cat("the run of --continue_run ", options.continue_run.string(),
                            " shared a sample among ", sharing_ranks(parser),
                            " ranks, and train_batch_size of the --deepspeed file was divided for ", sharing,
                            "; give --ulysses and --ring, or --sp, too"));
  }
  options.context_stages = list_of_stages(options.context_stages);
  if (!first_stage_sets_degrees(options.context_stages)) check_sharing_ranks(parser, ranks);
  return notes;
}

TrainOptions TrainFlags::resolve(const RankIdentity& identity) const {
  TrainOptions resolved = options;
  resolved.model_dir = find_model_directory(options.model_dir.string());
  resolved.engine.optimizer.seed = resolved.engine.lora.seed = static_cast<uint64_t>(resolved.seed);
  process.prepare(resolved.engine, identity);
  check_options(resolved);
  return resolved;
}

int run_train(const std::vector<std::string>& arguments) {
  TrainFlags flags;
  OptionParser parser(
      "train",
      "Trains a model on long sequences, each shared by --sp ranks. Most runs need: --model_name_or_path "
      "--train_file --output_dir --max_seq_length --sp --zero --bf16 --per_device_train_batch_size (8 unless "
      "given).");
  flags.declare(parser);
  RankIdentity identity;
  std::vector<std::string> notes;
  std::optional<int64_t> first_ranks;  // of launch --elastic: those that the files are for
  const auto read_files = [&] {
    identity = rank_identity_from_environment();
    first_ranks = environment_integer("TRIREME_FIRST_RANKS");
    notes = flags.read_files(parser, static_cast<int>(first_ranks.value_or(identity.size)));
  };
  if (!parser.parse(arguments, read_files)) return 0;
  refuse_unread_flags(parser, flags.options);
  end_on_stop_request();
  TrainOptions options = flags.resolve(identity);

  TrainHooks hooks;
  hooks.out = &std::cout;
  hooks.terminal_columns = columns_of_output();
  hooks.stop_requested = &stop_requested();
  hooks.on_training_begins = save_on_stop_request;
  const c10::DeviceGuard guard(options.engine.device);
  const auto world = join_run(identity, options.engine, flags.process);
  flags.process.share_sequence(options.engine, parser, world->common_machine_ranks(), options.model_dir);
  if (first_ranks) keep_global_batch_of(static_cast<int>(*first_ranks), identity.size, options, notes);
  if (identity.rank == 0) {
    if (const auto warning = crossing_warning(options.engine.ulysses, *world))
      std::cerr << "trireme: warning: " << *warning << std::endl;
    std::cout << "configuration, beside the defaults:\n" << changed_options_text(parser, options);
    for (const std::string& note : notes) std::cout << note << "\n";
    std::cout << std::flush;
  }
  if (flags.dry_run) {
    const DryRun shown = dry_run(*world, options);
    if (identity.rank == 0) std::cout << shown.text() << std::flush;
    return 0;
  }
  const TrainOutcome outcome = train(*world, options, hooks);
  if (outcome.stopped) {
    if (identity.rank == 0)
      std::cerr << kAskedToStop << ": finished step " << outcome.steps << " of " << outcome.total_steps
                << " and saved " << outcome.checkpoint.string()
                << "; go on with --resume_from_checkpoint true" << std::endl;
    return CommError::kExitCode;
  }
  return 0;
}

}  // namespace trireme
