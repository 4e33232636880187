// What to change where a step does not fit: whole sets of changes after which it does, the smallest set
// first. Nothing of what is trained changes: attention stays full, a step keeps its tokens. How they are
// found: change_search.h.
#pragma once

#include <optional>

#include "trireme/plan/memory_change.h"
#include "trireme/plan/planned.h"

namespace trireme {

struct TensorLimits {
  int64_t device_bytes = 0;   // that a rank's tensors may take
  int64_t host_bytes = 0;     // of a machine, beside GPUs; 0: not limited
  int64_t machine_ranks = 1;  // that share them
};

// What a step takes.
struct StepCost {
  int64_t device_bytes = 0;  // of a rank, at most
  int64_t host_bytes = 0;    // of a machine's ranks together
  double seconds = 0;
  double tokens_per_second = 0;  // of all ranks

  bool fits(const TensorLimits& limits) const { return bytes_too_many(limits) == 0; }
  int64_t bytes_too_many(const TensorLimits& limits) const;  // on the device and the host
};

// The bytes; without time. A rank's forecast, times the ranks of a machine for its host. Writes how many
// layers' activations stay on the device, as a run within these limits chooses it.
StepCost memory_cost(PlannedStep& step, const TensorLimits& limits);

struct MemoryChangeSet {
  std::vector<MemoryChange> changes;  // in the order of MemoryChangeKind
  PlannedStep step;                   // with them
  StepCost cost;

  // As one command line, accumulation and the disk's folder included.
  std::string flags(const PlannedStep& before) const;
  // As a patch of ds_config.json, of what DeepSpeed has.
  Json deepspeed(const PlannedStep& before) const;
  // Arguments of the Trainer's side, ", " between them.
  std::string trainer(const PlannedStep& before) const;
  // Of the changes that neither of those has, the flags.
  std::string trireme_alone() const;
};

struct MemoryChanges {
  PlannedStep step;
  TensorLimits limits;
  StepCost cost;                      // without changes
  std::vector<MemoryChangeSet> sets;  // empty: it fits as it is, or nothing helps
  // Where no set fits: the one that comes nearest, how many ranks it takes with those of a sequence, and the
  // longest sequence that fits with it; 0: none was found.
  std::optional<MemoryChangeSet> nearest;
  int ranks_needed = 0;
  int64_t longest_tokens = 0;

  bool fits() const { return cost.fits(limits); }
};

// At most six sets. Throws ConfigError as step_time does.
MemoryChanges find_memory_changes(const PlannedStep& step, const HardwareProfile& hardware,
                                  const TensorLimits& limits, const ChangesAllowed& allowed = {});

}  // namespace trireme
