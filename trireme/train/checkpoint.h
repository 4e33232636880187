// Saves and reads the whole state of a training run.
//
//   step-N/rank-0000r.safetensors         fp32 masters under Hugging Face's names, optimizer moments
//   step-N/model.safetensors.index.json   the file of each weight: a checkpoint is also a model directory
//   step-N/config.json, tokenizer files   of the model, so that export and evaluation need no other path; of one
//                                         that is trained on chats, as chat_files.h has them
//   step-N/trainer_state.json             step, stage, loader, seed, tokens seen, optimizer steps, options
//   step-N/manifest.json                  size and checksum of every other file
//
// Files hold whole units, however the state is sharded: one rank writes a unit (model/unit_writer.h), and all
// ranks put it together then. So any number of ranks and any ZeRO stage can read a checkpoint. All ranks
// write and sync their file under a temporary name. Then rank 0 writes the manifest and renames. So the name
// step-N is always a whole checkpoint, whatever is killed when.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/comm/agreement.h"
#include "trireme/engine/engine.h"
#include "trireme/train/run_directory.h"

namespace trireme {

struct CheckpointContents {
  int64_t step = 0;
  Json trainer_state;  // gets "optimizer_steps" added
  // Of the model: its tokenizer files, as far as they exist, are copied, and an adapter names it.
  std::filesystem::path model_dir;
  std::optional<int64_t> best_step = {};               // the step of the best checkpoint, which stays
  std::map<std::string, std::string> chat_files = {};  // chat_files.h: in place of the model's
};

// Returns the checkpoint's path, after it removed older ones beyond `save_total_limit` (0: keeps all).
// Collective. Throws DataError that names the bytes needed if a disk is full; earlier checkpoints then stay.
std::filesystem::path save_checkpoint(const RunDirectory& run, const CheckpointContents& contents,
                                      Engine& engine, Agreement& agreement, int64_t save_total_limit);

// Puts the states of all units together, and hands over those of the units that this rank writes, in their
// order, flat on the engine's device, while other ranks take theirs. Beside the unit that is put together a
// rank holds one that it takes. Collective: `take` must not throw where there are other ranks. What one rank
// throws (it lacks memory for a unit, say) the others do not learn: it must end by it.
void for_each_state(
    Engine& engine,
    const std::function<void(const UnitSpec& unit, const std::string& state, const at::Tensor& flat)>& take);

struct CheckpointRead {
  Json trainer_state;
  int64_t bytes = 0;  // that this rank read: of all tensors its share, and the headers of all files
};
// Reads a checkpoint that choose_checkpoint (resume.h) verified, and replaces the engine's state. Each rank
// reads its share of every unit; with ZeRO 0 they exchange them. Collective. Throws DataError, on all ranks,
// that names the file, or a tensor that is missing or misshapen.
CheckpointRead read_checkpoint(const std::filesystem::path& dir, Engine& engine);

}  // namespace trireme
