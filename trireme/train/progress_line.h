// A run's progress for people.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/train/metrics.h"

namespace trireme {

// On a terminal, one line that is redrawn, never wider than the terminal. Elsewhere a plain line for the
// first step shown, every `logging_steps`, the last step, and whenever a minute has passed without one.
class ProgressLine {
 public:
  // `columns` gives the terminal's width before each line; 0, or no function: lines cannot be redrawn.
  // `clock` gives seconds.
  ProgressLine(std::ostream& out, std::function<int()> columns, int64_t logging_steps, int64_t total_steps,
               int stages, std::function<double()> clock = now_seconds);
  void show(const StepRecord& record);
  // Writes a message on its own line, above the live line.
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
  size_t drawn_ = 0;                     // characters of the live line on the terminal
};

}  // namespace trireme
