// Saves and reads the whole state of a training run.
//
//   step-N/rank-0000r.safetensors         fp32 masters under their Hugging Face names, optimizer moments under theirs
//   step-N/model.safetensors.index.json   which file holds which weight: a checkpoint is also a model directory
//   step-N/config.json, tokenizer files   of the model, so that export and evaluation need no other path
//   step-N/trainer_state.json             step, stage, data loader, seed, tokens seen, optimizer steps, options
//   step-N/manifest.json                  size and checksum of every other file
//
// Files hold whole units, whatever is sharded (a unit is put together as it is written): unit u by rank u % ranks.
// So a checkpoint written by one number of ranks and ZeRO stage is read by any other. All ranks write and sync
// their file under a temporary name; then rank 0 writes the manifest and renames: a name step-N is a whole
// checkpoint, whatever is killed when.
#pragma once

#include <filesystem>

#include "trireme/base/json.h"
#include "trireme/comm/agreement.h"
#include "trireme/engine/engine.h"
#include "trireme/train/run_directory.h"

namespace trireme {

struct CheckpointContents {
  int64_t step = 0;
  Json trainer_state;                    // gets "optimizer_steps" added
  std::filesystem::path tokenizer_from;  // folder with tokenizer files; those that are there are copied
};

// Returns the checkpoint's path; older ones beyond `save_total_limit` (0: all stay) are then removed.
// Collective. Throws DataError that names the bytes needed where a disk is full; earlier checkpoints are then
// as they were.
std::filesystem::path save_checkpoint(const RunDirectory& run, const CheckpointContents& contents,
                                      Engine& engine, Agreement& agreement, int64_t save_total_limit);

// Reads a checkpoint that choose_checkpoint (resume.h) verified into the engine, whose state is fully replaced, and returns
// trainer_state.json. Throws DataError that names the file, or the tensor that is missing or has another shape.
Json read_checkpoint(const std::filesystem::path& dir, Engine& engine);

}  // namespace trireme
