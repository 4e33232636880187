// One output stream of one rank, on its way to the launcher's: cut into lines, each with "[rank N] " before
// it; or, for programs that read it, byte for byte.
//
// A line may end with \n, or with \r: a live line, to be overwritten by the next. On a terminal it stays one;
// in a file each state of it becomes a line. Programs that write "\r" first and the text after it, without an
// end, are shown too: `show_pending`.
#pragma once

#include <deque>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace trireme {

// Where lines of all ranks end up.
class OutputSink {
 public:
  OutputSink(std::ostream& stream, bool terminal) : stream_(stream), terminal_(terminal) {}
  bool terminal() const { return terminal_; }
  // `live`: the next line overwrites this one.
  void line(std::string_view prefix, std::string_view text, bool live);
  // As they are, at once.
  void bytes(std::string_view bytes);
  // Ends a live line that is still there.
  void finish();

 private:
  std::ostream& stream_;
  bool terminal_;
  bool live_ = false;
};

class RankOutput {
 public:
  // Without a prefix, bytes pass as they come, and no last lines are kept.
  RankOutput(std::optional<std::string> prefix, OutputSink& sink) : prefix_(std::move(prefix)), sink_(sink) {}

  void take(std::string_view bytes);
  // Shows an unfinished live line; it stays unfinished.
  void show_pending();
  // The stream has ended: an unfinished line is a line.
  void finish();
  // The last lines that were not empty, oldest first.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void end_line(bool live);

  std::optional<std::string> prefix_;
  OutputSink& sink_;
  std::string pending_;
  size_t shown_ = 0;           // bytes of pending_ that a live line already shows
  bool live_ = false;          // the last line ended with \r
  bool after_return_ = false;  // \r was the last byte: \n may follow
  std::deque<std::string> last_lines_;
};

}  // namespace trireme
