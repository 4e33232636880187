// A pasted log by lines, without what a launcher writes before each of them, and the frames of the Python
// tracebacks in it, in the forms in which people have them:
//
//   [rank3]:   File "/opt/deepspeed/engine.py", line 1184, in backward      Python
//   File /opt/deepspeed/engine.py:1184, in Engine.backward(self)            IPython
//   /opt/deepspeed/engine.py in backward(self)                              IPython before 8; the line by -->
//   | /opt/deepspeed/engine.py:1184 in backward                      |      rich, which may break the path
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct LogLine {
  int rank = -1;          // that the launcher names; -1: none
  std::string_view text;  // after the launcher's words
  size_t begin = 0;       // of it in PastedLog::flat
};

// Views into the text that it was made of.
struct PastedLog {
  std::vector<LogLine> lines;
  std::string flat;  // all lines in one, each run of spaces a single one: messages that a terminal broke

  // Of the line that has this byte of `flat`.
  size_t line_at(size_t flat_begin) const;
};
PastedLog read_log(std::string_view text);

struct TracebackFrame {
  std::string file;
  int64_t line = 0;  // 0: the form does not tell
  std::string function;
  std::string code;  // of the line, where the traceback shows it
  int rank = -1;
  size_t log_line = 0;  // index into PastedLog::lines

  // A file of the package torch, which asks for whom it works.
  bool of_torch() const;
  bool operator==(const TracebackFrame&) const = default;
};
// In the order of the log.
std::vector<TracebackFrame> traceback_frames(const PastedLog& log);

}  // namespace trireme
