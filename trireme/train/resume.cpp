#include "trireme/train/resume.h"

#include <chrono>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/option_list.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/checkpoint_names.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Instead of a step: there is no checkpoint.
constexpr int64_t kNone = -1;

// What a run can do that finds no whole checkpoint.
constexpr const char* kToBeginAnew =
    "\nTo begin anew give --overwrite_output_dir in place of --resume_from_checkpoint, or choose another "
    "--output_dir";

// The problem of a checkpoint, in the same words on every rank; empty: it is whole. Each rank reads its share
// of the chunks, so that all files are read once. Collective.
std::string problem_of(CheckpointEntry& entry, const RankIdentity& identity, Agreement& agreement) {
  const fs::path& checkpoint = entry.path;
  std::string problem;
  agreement.all_or_none(cat("checking ", checkpoint.string()), [&] {
    check_readable(checkpoint);
    try {
      entry.checked_bytes = verify_checkpoint(checkpoint, {identity.rank, identity.size});
    } catch (const DataError& error) {
      problem = error.what() + read_by_text(identity.rank, identity.size);
    }
  });
  return agreement.first_text(problem);
}

// Also true for a checkpoint whose launch cannot be read: its checksums decide.
bool is_of_launch(const fs::path& checkpoint, const std::string& launch) {
  const fs::path file = checkpoint / kTrainerStateFile;
  try {
    return text_value(read_json(file), "launch", file.string(), "") == launch;
  } catch (const DataError&) {
    return true;
  }
}

// An empty `launch` accepts the checkpoints of all launches. `advice` ends the error where none is whole.
std::optional<CheckpointEntry> newest(const RunDirectory& run, const std::string& launch,
                                      const RankIdentity& identity, Agreement& agreement,
                                      const std::function<void(const std::string&)>& note,
                                      const char* advice = kToBeginAnew) {
  std::vector<int64_t> steps;  // rank 0's; the newest is the last
  const auto last = [&] { return agreement.of_rank_0(steps.empty() ? kNone : steps.back()); };
  const auto look = [&] {
    agreement.all_or_none(cat("looking for a checkpoint in ", run.path().string()), [&] {
      if (identity.rank != 0) return;
      for (const CheckpointEntry& entry : run.list())
        if (launch.empty() || is_of_launch(entry.path, launch)) steps.push_back(entry.step);
    });
    return last();
  };
  std::string broken;
  int64_t step = look(), newest_step = step;
  while (step != kNone) {
    CheckpointEntry entry{step, run.checkpoint(step)};
    const std::string problem = problem_of(entry, identity, agreement);
    if (problem.empty()) return entry;
    note(cat("passing over the broken checkpoint ", entry.path.string(), ": ", problem));
    broken += "\n  " + problem;
    if (!steps.empty()) steps.pop_back();
    step = last();
    if (step != kNone) continue;
    // The run may go on, save, and remove what was listed.
    const int64_t saved = look();
    if (saved <= newest_step) break;
    step = newest_step = saved;
    broken.clear();
  }
  if (!broken.empty())
    throw DataError(
        cat(run.checkpoints().string(), " holds checkpoints, and none is whole:", broken, advice));
  return std::nullopt;
}

// No other serves in its place. Collective.
CheckpointEntry named_checkpoint(const fs::path& path, const RankIdentity& identity, Agreement& agreement) {
  CheckpointEntry entry{kNone, path};
  check_whole(entry, identity, agreement);
  agreement.all_or_none(cat("reading ", path.string()), [&] { entry.step = read_manifest(path).step; });
  return entry;
}

// All checkpoints of a folder must be of one run.
void check_not_among_others(const fs::path& checkpoint, const RunDirectory& run, bool is_rank_0,
                            Agreement& agreement) {
  agreement.all_or_none(cat("looking for checkpoints in ", run.path().string()), [&] {
    if (!is_rank_0) return;
    const std::vector<CheckpointEntry> there = run.list();
    for (const CheckpointEntry& entry : there)
      if (are_one(entry.path, checkpoint)) return;
    if (!there.empty())
      throw ConfigError(cat("--resume_from_checkpoint ", checkpoint.string(), " is of another run, and ",
                            run.path().string(),
                            " holds checkpoints already: choose another --output_dir, or go on with those by "
                            "--resume_from_checkpoint true"));
  });
}

}  // namespace

std::optional<CheckpointEntry> choose_checkpoint(const TrainOptions& options, const RunDirectory& run,
                                                 const RankIdentity& identity, Agreement& agreement,
                                                 const std::function<void(const std::string&)>& note) {
  const bool is_rank_0 = identity.rank == 0;
  const std::string& asked = options.resume_from_checkpoint;
  const ResumeKind kind = resume_kind(options);
  const bool newest_of_all = kind == ResumeKind::newest || kind == ResumeKind::newest_if_any;
  if (identity.restarted() && !newest_of_all) {
    // Rank 0 knows which launch this is.
    const bool known = agreement.of_rank_0(identity.launch_id.empty() ? 0 : 1) != 0;
    auto found = known ? newest(run, identity.launch_id, identity, agreement, note) : std::nullopt;
    if (found) {
      note(cat("restart ", identity.attempt, " of this launch: going on from what it saved"));
      return found;
    }
  }
  if (kind == ResumeKind::none) return std::nullopt;
  if (newest_of_all) {
    auto found = newest(run, "", identity, agreement, note);
    if (!found && kind == ResumeKind::newest)
      throw ConfigError(cat("--resume_from_checkpoint ", asked, ": there is no whole checkpoint in ",
                            run.checkpoints().string(),
                            "; give --resume_from_checkpoint auto to start anew then"));
    return found;
  }
  const fs::path path = asked;
  bool is_run = false;
  agreement.all_or_none(cat("looking for ", path.string()), [&] {
    if (!is_there(path))
      throw ConfigError(cat("--resume_from_checkpoint: there is no folder ", path.string(),
                            "; expected true, auto, or a checkpoint such as ", run.checkpoint(100).string()));
    is_run = is_rank_0 && !is_there(path / kManifestFile) && is_there(RunDirectory(path).checkpoints());
  });
  if (agreement.any(is_run)) {
    auto found = newest(RunDirectory(path), "", identity, agreement, note);
    if (!found)
      throw ConfigError(cat("--resume_from_checkpoint: there is no whole checkpoint in ", path.string()));
    check_not_among_others(found->path, run, is_rank_0, agreement);
    return found;
  }
  check_not_among_others(path, run, is_rank_0, agreement);
  return named_checkpoint(path, identity, agreement);
}

CheckpointEntry find_checkpoint(const fs::path& path, const RankIdentity& identity, Agreement& agreement,
                                const std::function<void(const std::string&)>& note) {
  bool is_named = false;
  agreement.all_or_none(cat("looking for ", path.string()),
                        [&] { is_named = identity.rank == 0 && is_there(path / kManifestFile); });
  if (agreement.any(is_named)) return named_checkpoint(path, identity, agreement);
  const auto found = newest(RunDirectory(path), "", identity, agreement, note, /*advice=*/"");
  if (!found)
    throw ConfigError(cat(path.string(), " is neither a checkpoint (it has no ", kManifestFile,
                          ") nor a run's folder with checkpoints/step-N in it"));
  return *found;
}

CheckpointEntry find_checkpoint(const fs::path& path, const std::function<void(const std::string&)>& note) {
  Group alone("one process", nullptr, {0}, 0, std::chrono::milliseconds(0));
  Agreement agreement(alone, at::kCPU);
  return find_checkpoint(path, {}, agreement, note);
}

void check_whole(CheckpointEntry& entry, const RankIdentity& identity, Agreement& agreement) {
  if (const std::string problem = problem_of(entry, identity, agreement); !problem.empty())
    throw DataError(problem);
}

RunFacts checkpoint_facts(const Json& state, const fs::path& checkpoint) {
  const std::string origin = (checkpoint / kTrainerStateFile).string();
  RunFacts facts;
  facts.options = object_value(state, "options", origin);
  facts.options_origin = origin + ": options";
  facts.ranks = whole_number(state, "ranks", {1, kMostRanks}, origin, 1);
  if (const Json* sources = find_field(state, "data", origin))
    if (find_field(*sources, "train", origin) != nullptr) {
      facts.train_source = object_value(*sources, "train", origin);
      for (const char* key : {"path", "digest"})
        text_value(facts.train_source, key, origin + ": data.train", "");
    }
  facts.model = computed_fields(read_model_config(checkpoint));
  facts.model["lora"] = lora_of_checkpoint(checkpoint);
  return facts;
}

}  // namespace trireme
