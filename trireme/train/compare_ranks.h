// Before a run begins: every rank must have been told the same, and must find the same model. Ranks that
// differ would wait for each other in different collectives, or would train different models without a word.
#pragma once

#include "trireme/comm/agreement.h"
#include "trireme/train/train_options.h"

namespace trireme {

// What must be equal: every option but paths, which machines may name differently, and those of one machine
// (Option::of_machine); what config.json decides (model/computed_fields.h); of each file of weights its size,
// its tensors, and 16 blocks of 64 KiB; the same of an adapter, and its LoRA. Throws ConfigError, the same on all ranks, which names a rank and
// what differs on it: "learning_rate is 0.0001 on rank 0 and 0.0002 on rank 3". Collective; before anything
// that depends on options.
void compare_ranks(const TrainOptions& options, int rank, Agreement& agreement);

}  // namespace trireme
