// What a run reports: a record a step to metrics.jsonl, and a live line for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>

#include "trireme/base/json.h"
#include "trireme/device/memory_category.h"

namespace trireme {

struct StepRecord {
  int64_t step = 0;  // finished steps, from 1
  double epoch = 0;  // passes over the data of this stage's loader
  int stage = 0;
  int64_t sequence_tokens = 0;
  std::string packing;
  int64_t target_tokens = 0;  // of this step, over all ranks: what the loss is the mean of
  double loss = 0;
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double loss_scale = 0;         // fp16: of this step; 0: none
  bool skipped = false;          // fp16: gradients overflowed at that scale, the parameters stayed
  double tokens_per_second = 0;  // over all ranks, padding counted
  double mfu = 0;                // model FLOPs over the peak of all ranks, attention counted within documents
  int64_t memory_bytes = 0;      // of rank 0: peak resident on the CPU, peak allocated on a GPU
  MemoryBytes peak_memory;       // of rank 0's tensors, each category by itself, since its stage began
  MemoryBytes host_peak_memory;  // the same of the host's memory beside a GPU
  double seconds = 0;            // of this step
  int64_t tokens_seen = 0;       // by the run so far, padding counted
  double eta_seconds = 0;        // left, by the FLOPs of the steps to come

  Json to_json() const;
};

// metrics.jsonl, one JSON object a line, flushed at each line.
class MetricsLog {
 public:
  // Keeps the lines up to `last_step` (those of a run that goes on from there) and drops later ones; -1 keeps
  // none. Throws DataError when the file cannot be written.
  MetricsLog(const std::filesystem::path& file, int64_t last_step);
  // False when the disk refuses: metrics are worth a warning, not a run.
  bool write(const Json& record);

 private:
  std::ofstream out_;
};

// One line redrawn on a terminal; elsewhere a plain line every `logging_steps`.
class ProgressLine {
 public:
  ProgressLine(std::ostream& out, bool terminal, int64_t logging_steps, int64_t total_steps, int stages);
  void show(const StepRecord& record);
  // A message of its own, above the live line.
  void note(const std::string& text);
  // Ends the live line.
  void finish();

 private:
  std::ostream& out_;
  bool terminal_;
  int64_t logging_steps_;
  int64_t total_steps_;
  int stages_;
  size_t drawn_ = 0;  // characters of the line that stands on the terminal
};

}  // namespace trireme
