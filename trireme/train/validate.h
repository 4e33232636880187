// `trireme validate`: the checklist before money is spent, with the options, model and data of the run.
//
//   memory       a dry run at the longest length (dry_run.h)
//   documents    every rank that shares a sample makes the same masks
//   losses       some steps of the run, at its precision and its peak learning rate, on its data
//   throughput   of these steps, beside the matmul rate that the ranks measure together
//   one rank     a step in fp32 on all ranks and on one
//
// Steps run at `sequence_tokens`, in the layout of the whole run. Tokens of text are written to the run's
// folder, as training writes them; nothing else is, and no checkpoint is read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/train/checks.h"
#include "trireme/train/train_options.h"

namespace trireme {

struct ValidateOptions {
  int64_t sequence_tokens = 0;  // 0: 32,768, or the longest stage where that is shorter
  int64_t steps = 50;
  double tolerance = 1e-4;          // of each tensor's largest entry, against one rank
  double least_matmul_share = 0.1;  // of model FLOPs
  double matmul_seconds = 0.25;     // spent on each shape of the matmul rate
  bool skip_one_rank = false;       // a model that one rank cannot hold: the last check is left out
};

struct Validation {
  std::vector<Check> checks;
  bool passed() const;  // none failed
  Json to_json() const;
};

struct ValidateHooks {
  std::function<void(const Check&)> on_check;    // on every rank, as each is done
  std::function<void(const std::string&)> note;  // on rank 0
};

// Collective; every rank has the same. A check that fails does not end the others. What ends a run ends this
// too: options that cannot stand together, data that cannot be read, out of memory.
Validation validate(World& world, const TrainOptions& options, const ValidateOptions& how,
                    const ValidateHooks& hooks = {});

}  // namespace trireme
