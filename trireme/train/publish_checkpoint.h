// What rank 0 does of a save: the folder before, the small files, the manifest and the name after.
//
//   begin_checkpoint    step-N.tmp/
//   ranks               step-N.tmp/rank-0000r.safetensors, synced
//   publish_checkpoint  small files, manifest.json, all synced -> renamed to step-N -> older ones removed
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/agreement.h"
#include "trireme/engine/engine.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/run_directory.h"

namespace trireme {

// What the small files say, as it is at the step that is saved.
struct CheckpointTexts {
  int64_t step = 0;
  int ranks = 1;
  std::map<std::string, std::string> texts;  // by file name
  std::filesystem::path tokenizer_from;
  int64_t save_total_limit = 0;
  std::optional<int64_t> best_step;
};
CheckpointTexts checkpoint_texts(const CheckpointContents& contents, const Engine& engine, int ranks,
                                 int64_t save_total_limit);

// Removes what killed saves left, and makes the temporary folder. DataError.
void begin_checkpoint(const RunDirectory& run, int64_t step);

// Each rank's description of its file, on every rank. Collective.
std::vector<ManifestFile> gather_described(const ManifestFile& file, Agreement& agreement);

// Throws DataError; if it was before the renaming, the name step-N does not exist.
void publish_checkpoint(const RunDirectory& run, const CheckpointTexts& contents,
                        const std::vector<ManifestFile>& shards);

// Every rank runs its part of a save. Where one fails, all throw, and rank 0 removes what was written.
// Collective.
void save_part(const RunDirectory& run, int64_t step, Agreement& agreement, bool is_rank_0,
               const std::function<void()>& work);

}  // namespace trireme
