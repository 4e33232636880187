#include "trireme/plan/unified_diff.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using Lines = std::vector<std::string>;

// Each with its end of line; the last may lack it.
Lines lines_of(const std::string& text) {
  Lines lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    lines.push_back(text.substr(at, end - at));
    at = end;
  }
  return lines;
}

std::string diff_line(char mark, const std::string& line) {
  return cat(mark, line, line.ends_with('\n') ? "" : "\n\\ No newline at end of file\n");
}

// Lines [begin, end) become `after`.
struct LineChange {
  size_t begin = 0, end = 0;
  Lines after;
};

std::vector<LineChange> line_changes(const Lines& lines, const std::vector<TextEdit>& sorted) {
  std::vector<LineChange> changes;
  size_t line = 0, line_begin = 0;
  for (size_t i = 0; i < sorted.size();) {
    while (line < lines.size() && line_begin + lines[line].size() <= sorted[i].begin)
      line_begin += lines[line++].size();
    size_t end = line, end_byte = line_begin;
    const size_t first = i;
    while (i < sorted.size() && (i == first || sorted[i].begin < end_byte)) {
      while (end < lines.size() && end_byte < std::max(sorted[i].end, sorted[i].begin + 1))
        end_byte += lines[end++].size();
      ++i;
    }
    std::string text;
    for (size_t at = line; at < end; ++at) text += lines[at];
    std::vector<TextEdit> within(sorted.begin() + static_cast<std::ptrdiff_t>(first),
                                 sorted.begin() + static_cast<std::ptrdiff_t>(i));
    for (TextEdit& edit : within) edit.begin -= line_begin, edit.end -= line_begin;
    LineChange change{line, end, lines_of(with_edits(text, within))};
    // Lines that an edit only touches stay.
    while (change.begin < change.end && !change.after.empty() &&
           lines[change.begin] == change.after.front()) {
      change.after.erase(change.after.begin());
      ++change.begin;
    }
    while (change.begin < change.end && !change.after.empty() &&
           lines[change.end - 1] == change.after.back()) {
      change.after.pop_back();
      --change.end;
    }
    const bool follows = !changes.empty() && changes.back().end == change.begin;
    if (follows) {
      changes.back().end = change.end;
      changes.back().after.insert(changes.back().after.end(), change.after.begin(), change.after.end());
    } else if (change.begin < change.end || !change.after.empty()) {
      changes.push_back(std::move(change));
    }
    line = end;
    line_begin = end_byte;
  }
  return changes;
}

}  // namespace

std::string with_edits(const std::string& text, std::vector<TextEdit> edits) {
  std::ranges::stable_sort(edits, {}, &TextEdit::begin);
  std::string result;
  size_t at = 0;
  for (const TextEdit& edit : edits) {
    TRIREME_ASSERT(edit.begin >= at && edit.end >= edit.begin && edit.end <= text.size(), "an edit of bytes ",
                   edit.begin, " to ", edit.end);
    result += text.substr(at, edit.begin - at) + edit.text;
    at = edit.end;
  }
  return result + text.substr(at);
}

std::string unified_diff(const std::string& file, const std::string& text, std::vector<TextEdit> edits) {
  constexpr size_t kContext = 3;
  std::ranges::stable_sort(edits, {}, &TextEdit::begin);
  const Lines lines = lines_of(text);
  const std::vector<LineChange> changes = line_changes(lines, edits);
  if (changes.empty()) return "";
  std::string diff = cat("--- a/", file, "\n+++ b/", file, "\n");
  std::ptrdiff_t shift = 0;  // lines that were added before
  for (size_t i = 0; i < changes.size();) {
    const size_t begin = changes[i].begin - std::min(kContext, changes[i].begin);
    std::string hunk;
    size_t at = begin, added = 0, removed = 0;
    const auto keep = [&](size_t end) {
      for (; at < end; ++at) hunk += diff_line(' ', lines[at]);
    };
    size_t end = 0;
    do {
      keep(changes[i].begin);
      for (; at < changes[i].end; ++at, ++removed) hunk += diff_line('-', lines[at]);
      for (const std::string& line : changes[i].after) hunk += diff_line('+', line);
      added += changes[i].after.size();
      end = std::min(lines.size(), at + kContext);
      ++i;
    } while (i < changes.size() && changes[i].begin <= end + kContext);
    keep(end);
    const size_t old_lines = end - begin, new_lines = old_lines + added - removed;
    // A range without lines is named by the line before it.
    diff += cat("@@ -", begin + (old_lines > 0 ? 1 : 0), ",", old_lines, " +",
                static_cast<std::ptrdiff_t>(begin) + shift + (new_lines > 0 ? 1 : 0), ",", new_lines, " @@\n",
                hunk);
    shift += static_cast<std::ptrdiff_t>(added) - static_cast<std::ptrdiff_t>(removed);
  }
  return diff;
}

}  // namespace trireme
