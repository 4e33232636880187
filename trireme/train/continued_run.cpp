#include "trireme/train/continued_run.h"

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/model/lora_files.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/run_directory.h"

namespace fs = std::filesystem;

namespace trireme {

fs::path continued_checkpoint(const fs::path& run) {
  if (is_there(run / kManifestFile)) return run;
  const std::vector<CheckpointEntry> checkpoints = RunDirectory(run).list();
  if (checkpoints.empty())
    throw ConfigError(cat("--continue_run: there is no checkpoint in ", run.string(),
                          "; expected a run's folder, or a checkpoint such as ",
                          RunDirectory(run).checkpoint(100).string()));
  return checkpoints.back().path;
}

void check_continued(const TrainOptions& options, const fs::path& checkpoint) {
  if (is_adapter_folder(checkpoint)) {
    if (!are_one(options.engine.lora.adapter, checkpoint))
      throw ConfigError(cat("--continue_run ", options.continue_run.string(), " begins with the adapter ",
                            checkpoint.string(), ", and --adapter is ", options.engine.lora.adapter.string(),
                            "; leave it out"));
  } else if (!are_one(options.model_dir, checkpoint))
    throw ConfigError(cat("--continue_run ", options.continue_run.string(), " begins with the model ",
                          checkpoint.string(), ", and --model_name_or_path is ", options.model_dir.string(),
                          "; leave it out"));
}

}  // namespace trireme
