#include "trireme/train/resume.h"

#include <set>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/train/checkpoint_manifest.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Every rank learns what rank 0 found: the step, or that there is none.
constexpr int64_t kNone = -1;

std::optional<CheckpointEntry> newest(const RunDirectory& run, bool is_rank_0, Agreement& agreement,
                                      const std::function<void(const std::string&)>& note) {
  int64_t step = kNone;
  agreement.all_or_none(cat("looking for a checkpoint in ", run.path().string()), [&] {
    if (!is_rank_0) return;
    const auto found = run.newest_valid([&](const CheckpointEntry& entry, const std::string& problem) {
      note(cat("passing over the broken checkpoint ", entry.path.string(), ": ", problem));
    });
    if (found) step = found->step;
  });
  step = agreement.of_rank_0(step);
  if (step == kNone) return std::nullopt;
  return CheckpointEntry{step, run.checkpoint(step)};
}

}  // namespace

std::optional<CheckpointEntry> choose_checkpoint(const TrainOptions& options, const RunDirectory& run,
                                                 bool is_rank_0, Agreement& agreement,
                                                 const std::function<void(const std::string&)>& note) {
  const std::string& asked = options.resume_from_checkpoint;
  if (asked.empty() || asked == "false" || asked == "False") return std::nullopt;
  const bool latest = asked == "true" || asked == "True" || asked == "latest";
  if (latest || asked == "auto") {
    auto found = newest(run, is_rank_0, agreement, note);
    if (!found && latest)
      throw ConfigError(cat("--resume_from_checkpoint ", asked, ": there is no whole checkpoint in ",
                            run.checkpoints().string(),
                            "; give --resume_from_checkpoint auto to start anew then"));
    return found;
  }
  const fs::path path = asked;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    throw ConfigError(cat("--resume_from_checkpoint: there is no folder ", path.string(),
                          "; expected true, auto, or a checkpoint such as ", run.checkpoint(100).string()));
  if (!fs::exists(path / "manifest.json", ignored) && fs::is_directory(path / "checkpoints", ignored)) {
    auto found = newest(RunDirectory(path), is_rank_0, agreement, note);
    if (!found)
      throw ConfigError(cat("--resume_from_checkpoint: there is no whole checkpoint in ", path.string()));
    return found;
  }
  CheckpointEntry entry{kNone, path};
  agreement.all_or_none(cat("checking ", path.string()), [&] {
    entry.step = is_rank_0 ? verify_checkpoint(path).step : read_manifest(path).step;
  });
  return entry;
}

ResumedRun parse_trainer_state(const Json& state, const fs::path& checkpoint) {
  try {
    ResumedRun run;
    run.step = state.at("step").get<int64_t>();
    run.stage = state.at("stage").get<int>();
    run.tokens_seen = state.at("tokens_seen").get<int64_t>();
    run.loader = state.at("loader");
    run.options = state.at("options");
    return run;
  } catch (const Json::exception& error) {
    throw DataError(
        cat((checkpoint / "trainer_state.json").string(), ": not a trainer's state: ", error.what()));
  }
}

std::vector<std::string> changed_options(const Json& before, const Json& now) {
  static const std::set<std::string> kHarmless{"output_dir",
                                               "resume_from_checkpoint",
                                               "save_steps",
                                               "save_total_limit",
                                               "logging_steps",
                                               "eval_steps",
                                               "max_eval_samples",
                                               "peak_tflops",
                                               "eval_file",
                                               "model_name_or_path",
                                               "overwrite_output_dir",
                                               "offload_dir",
                                               "offload_limit",
                                               "memory_budget",
                                               "host_memory_limit",
                                               "memory_report",
                                               "report_to",
                                               "logging_dir"};
  std::vector<std::string> changes;
  for (const auto& [key, value] : now.items()) {
    const Json old = before.value(key, Json());
    if (!kHarmless.contains(key) && old != value)
      changes.push_back(cat(key, " ", old.dump(), " -> ", value.dump()));
  }
  return changes;
}

}  // namespace trireme
