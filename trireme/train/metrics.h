// What a run reports: a record a step to metrics.jsonl, and a live line for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "trireme/base/clock.h"
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

// metrics.jsonl, one JSON object a line, handed to the system at each line.
class MetricsLog {
 public:
  // Keeps the records up to `last_step` (those of a run that goes on from there) and drops later ones; -1 keeps none. Lines
  // that are no records are dropped, and `note` hears how many. The file is replaced whole, and only where something
  // is dropped: a full disk leaves the old one. Throws DataError when it cannot be read or written.
  MetricsLog(std::filesystem::path file, int64_t last_step,
             const std::function<void(const std::string&)>& note = nullptr, double look_seconds = 10);
  ~MetricsLog();
  MetricsLog& operator=(MetricsLog&&) = delete;

  // Returns an empty text, or what is wrong: metrics are worth a warning, not a run. A file that was removed is begun anew
  // with this record; that it was is looked for every `look_seconds`.
  std::string write(const Json& record);

 private:
  std::string open();

  const std::filesystem::path file_;
  NowAndThen look_;
  int descriptor_ = -1;
};

// One line redrawn on a terminal, never wider than it; elsewhere a plain line for the first step shown, every `logging_steps`,
// the last one, and whenever a minute has passed without one.
class ProgressLine {
 public:
  // `columns` is asked before each line: the terminal's width now; 0, or no function: no line can be redrawn. `clock` gives
  // seconds.
  ProgressLine(std::ostream& out, std::function<int()> columns, int64_t logging_steps, int64_t total_steps,
               int stages, std::function<double()> clock = now_seconds);
  void show(const StepRecord& record);
  // A message of its own, above the live line.
  void note(const std::string& text);
  // Ends the live line.
  void finish();

 private:
  std::string line(const StepRecord& record, size_t columns) const;

  std::ostream& out_;
  std::function<int()> columns_;
  int64_t logging_steps_;
  int64_t total_steps_;
  int stages_;
  std::function<double()> clock_;
  std::optional<double> shown_seconds_;  // when the last plain line was written
  size_t drawn_ = 0;                     // characters of the line that stands on the terminal
};

}  // namespace trireme
