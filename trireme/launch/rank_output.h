// Passes one output stream of one rank to the launcher's stream: in lines, each with "[rank N] " before it,
// or byte for byte, for programs that read it.
//
// A line may end with \n, or with \r: then it is a live line, which the next line overwrites. A terminal
// redraws it; in a file each of its states becomes a line. show_pending() shows the text of programs that
// write "\r" first and then text without an end.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/launch/output_sink.h"

namespace trireme {

class RankOutput {
 public:
  // Without a rank, bytes pass unchanged, and no last lines are kept.
  RankOutput(std::optional<int> rank, OutputSink& sink) : rank_(rank), sink_(sink) {}

  void take(std::string_view bytes);
  // Shows an unfinished live line; it stays unfinished.
  void show_pending();
  // The stream has ended: an unfinished line counts as a line.
  void finish();
  // The last lines that were not empty, oldest first.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void end_line(bool live);

  std::optional<int> rank_;
  OutputSink& sink_;
  std::string pending_;
  size_t shown_ = 0;           // bytes of pending_ that a live line already shows
  bool live_ = false;          // the last line ended with \r
  bool after_return_ = false;  // \r was the last byte: \n may follow
  std::deque<std::string> last_lines_;
};

}  // namespace trireme
