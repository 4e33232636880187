// A run's records: one a step, in metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/device/memory_category.h"
#include "trireme/train/appended_file.h"

namespace trireme {

struct StepRecord {
  int64_t step = 0;  // finished steps, from 1
  double epoch = 0;  // passes over the data of this stage's loader
  int stage = 0;
  int64_t sequence_tokens = 0;
  std::string packing;
  int64_t target_tokens = 0;  // of this step, over all ranks: the loss is their mean
  double loss = 0;
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double loss_scale = 0;  // fp16: of this step; 0: none
  bool skipped = false;   // no update: not finite, or fp16's gradients overflowed at that scale
  std::optional<int64_t> nonfinite_steps;  // skipped so far; none: such a step ends the run
  double tokens_per_second = 0;            // over all ranks, padding counted
  double mfu = 0;            // model FLOPs over the peak of all ranks, attention counted within documents
  int64_t memory_bytes = 0;  // of this rank: peak resident on the CPU, peak allocated on a GPU
  std::vector<int64_t> memory_bytes_of_ranks;  // the same of every rank
  MemoryBytes peak_memory;                     // of rank 0's tensors, by category, since its stage began
  MemoryBytes host_peak_memory;                // the same of the host's memory beside a GPU
  double seconds = 0;                          // of this step
  int64_t tokens_seen = 0;                     // by the run so far, padding counted
  double eta_seconds = 0;                      // left, by the FLOPs of the steps to come

  Json to_json() const;
};

// The step of the last record in metrics.jsonl; nothing where there is none. Lines that are no records are
// passed over.
std::optional<int64_t> last_recorded_step(const std::filesystem::path& file);

// Of the step that a run resumes from: kept as it is, or due, so that an earlier one is dropped.
enum class LastEvaluation { kept, due };

// metrics.jsonl: one JSON object a line, each handed to the system at once.
class MetricsLog {
 public:
  // Keeps the records up to `last_step` (for a run that resumes there) and drops later ones; -1 keeps none.
  // Drops lines that are no records, and tells `note` how many. Replaces the file whole, and only if it drops
  // lines: a full disk leaves the old file. Throws DataError when it cannot be read or written.
  MetricsLog(const std::filesystem::path& file, int64_t last_step,
             const std::function<void(const std::string&)>& note = nullptr, double look_seconds = 10,
             LastEvaluation evaluation = LastEvaluation::kept);

  // Returns an empty text or the problem, which is worth a warning but not the run's end. A removed file is
  // begun anew with this record; a check for that runs every `look_seconds`.
  std::string write(const Json& record) { return log_.write(record.dump() + "\n"); }

 private:
  AppendedFile log_;
};

}  // namespace trireme
