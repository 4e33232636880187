#include "trireme/plan/traceback.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace trireme {
namespace {

constexpr size_t kLongestKept = 300;  // bytes of a path, a function or a line of code
constexpr std::string_view kSpaces = " \t\r\f\v";
constexpr std::string_view kRichBorder = "\u2502";  // a box's side
constexpr std::string_view kRichArrow = "\u2771";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string kept(std::string_view text) {
  return std::string(trimmed(text).substr(0, kLongestKept));
}

// A number at the front, which is taken off.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [rest, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return false;
  text.remove_prefix(front.size());
  return true;
}

// "[rank3]: ", "[default3]:", "[rank 3] ", as torchrun and trireme write them; "> " of a quoted mail.
int take_launcher_words(std::string_view& text) {
  while (take(text, "> ")) continue;
  for (const std::string_view front : {"[rank ", "[rank", "[default"}) {
    std::string_view rest = text;
    if (!take(rest, front)) continue;
    const auto rank = take_number(rest);
    if (!rank || *rank > 1'000'000 || !take(rest, "]")) continue;
    take(rest, ":");
    take(rest, " ");
    text = rest;
    return static_cast<int>(*rank);
  }
  return -1;
}

std::optional<TracebackFrame> python_frame(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (!take(rest, "File \"")) return std::nullopt;
  const size_t end = rest.find("\", line ");
  if (end == std::string_view::npos) return std::nullopt;
  TracebackFrame frame;
  frame.file = kept(rest.substr(0, end));
  rest.remove_prefix(end + std::string_view("\", line ").size());
  const auto line = take_number(rest);
  if (!line) return std::nullopt;
  frame.line = *line;
  if (take(rest, ", in ")) frame.function = kept(rest);
  return frame;
}

// "PATH:LINE<after>FUNCTION"; IPython separates by ", in ", rich by " in ".
std::optional<TracebackFrame> path_and_line(std::string_view text, std::string_view after) {
  const size_t function = text.find(after);
  if (function == std::string_view::npos) return std::nullopt;
  const size_t colon = text.rfind(':', function);
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view number = text.substr(colon + 1, function - colon - 1);
  const auto line = take_number(number);
  if (!line || !number.empty()) return std::nullopt;
  TracebackFrame frame;
  frame.file = kept(text.substr(0, colon));
  frame.line = *line;
  frame.function = kept(text.substr(function + after.size()));
  return frame;
}

std::optional<TracebackFrame> ipython_frame(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (take(rest, "File ")) {
    if (auto frame = path_and_line(rest, ", in ")) return frame;
    return path_and_line(rest, " in ");
  }
  if (!rest.starts_with('/') && !rest.starts_with("<ipython")) return std::nullopt;
  const size_t in = rest.find(" in ");
  if (in == std::string_view::npos || !rest.ends_with(')') || rest.substr(0, in).find(' ') < in)
    return std::nullopt;
  TracebackFrame frame;
  frame.file = kept(rest.substr(0, in));
  frame.function = kept(rest.substr(in + 4));
  return frame;
}

std::string_view in_rich_box(std::string_view text) {
  text = trimmed(text);
  if (!take(text, kRichBorder)) return {};
  if (text.ends_with(kRichBorder)) text.remove_suffix(kRichBorder.size());
  return trimmed(text);
}

std::optional<TracebackFrame> rich_frame(std::string_view line, std::string_view line_before) {
  const std::string_view text = in_rich_box(line);
  auto frame = path_and_line(text, " in ");
  if (!frame || frame->file.find(' ') != std::string::npos) return std::nullopt;
  const std::string_view before = in_rich_box(line_before);
  if (!frame->file.starts_with('/') && before.starts_with('/') && before.find(' ') == std::string_view::npos)
    frame->file = kept(std::string(before) + frame->file);
  return frame;
}

// The line of code that a traceback shows below a frame, with its number where the form has it.
bool take_code(std::string_view line, TracebackFrame& frame) {
  std::string_view text = in_rich_box(line);
  const bool rich = take(text, kRichArrow);
  if (!rich) {
    text = trimmed(line);
    const size_t arrow = text.find_first_not_of('-');
    if (arrow == 0 || arrow == std::string_view::npos || text[arrow] != '>') return false;
    text.remove_prefix(arrow + 1);
  }
  text = trimmed(text);
  const auto number = take_number(text);
  if (!number) return false;
  if (frame.line == 0) frame.line = *number;
  for (text = trimmed(text); take(text, kRichBorder);) text = trimmed(text);
  frame.code = kept(text);
  return true;
}

// Python shows the code in the next line.
bool is_code(std::string_view text) {
  text = trimmed(text);
  return !text.empty() && !python_frame(text) && !text.starts_with("Traceback") &&
         text.find_first_not_of("^~ ") != std::string_view::npos;
}

}  // namespace

PastedLog read_log(std::string_view text) {
  PastedLog log;
  for (size_t offset = 0; offset < text.size();) {
    const size_t end = std::min(text.find('\n', offset), text.size());
    LogLine line{-1, text.substr(offset, end - offset), log.flat.size()};
    line.rank = take_launcher_words(line.text);
    bool space = true;
    for (const char c : line.text) {
      const bool is_space = kSpaces.find(c) != std::string_view::npos;
      if (!is_space || !space) log.flat += is_space ? ' ' : c;
      space = is_space;
    }
    if (!space) log.flat += ' ';
    log.lines.push_back(line);
    offset = end + 1;
  }
  return log;
}

size_t PastedLog::line_at(size_t flat_begin) const {
  const auto after = std::ranges::upper_bound(lines, flat_begin, {}, &LogLine::begin);
  return static_cast<size_t>(std::max<std::ptrdiff_t>(1, after - lines.begin())) - 1;
}

bool TracebackFrame::of_torch() const {
  for (const char* inside : {"/torch/", "\\torch\\", "<frozen", "<string>"})
    if (file.find(inside) != std::string::npos) return true;
  return false;
}

std::vector<TracebackFrame> traceback_frames(const PastedLog& log) {
  std::vector<TracebackFrame> frames;
  for (size_t i = 0; i < log.lines.size(); ++i) {
    const LogLine& line = log.lines[i];
    auto frame = python_frame(line.text);
    if (frame && i + 1 < log.lines.size() && is_code(log.lines[i + 1].text))
      frame->code = kept(log.lines[i + 1].text);
    if (!frame) frame = ipython_frame(line.text);
    if (!frame) frame = rich_frame(line.text, i > 0 ? log.lines[i - 1].text : std::string_view());
    if (frame) {
      frame->rank = line.rank;
      frame->log_line = i;
      frames.push_back(std::move(*frame));
    } else if (!frames.empty() && frames.back().code.empty()) {
      take_code(line.text, frames.back());
    }
  }
  return frames;
}

}  // namespace trireme
