// Before a run begins: every rank must have been told the same, and must find the same model. Ranks that
// differ would wait for each other in different collectives, or would train different models without a word.
#pragma once

#include <filesystem>

#include "trireme/comm/agreement.h"
#include "trireme/model/lora.h"
#include "trireme/train/train_options.h"

namespace trireme {

// What must be equal: every option but paths, which machines may name differently, and those of one machine
// (Option::of_machine); and the model. Throws ConfigError, the same on all ranks, which names a rank and what
// differs on it: "learning_rate is 0.0001 on rank 0 and 0.0002 on rank 3". Collective; before anything that
// depends on options.
void compare_ranks(const TrainOptions& options, int rank, Agreement& agreement);

// Of the model what config.json decides (model/computed_fields.h); of each file of weights its size, its
// tensors, and 16 blocks of 64 KiB; the same of an adapter, and its LoRA. Returns the model's config. Throws
// as compare_ranks. Collective.
ModelConfig compare_models(const std::filesystem::path& model_dir, const LoraOptions& lora, int rank,
                           Agreement& agreement);

}  // namespace trireme
