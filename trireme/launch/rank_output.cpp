#include "trireme/launch/rank_output.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr size_t kLastLines = 12;
constexpr size_t kLongestKeptLine = 2000;
constexpr size_t kLongestLine_bytes = size_t{1} << 20;  // a longer one passes in pieces

}  // namespace

void RankOutput::end_line(bool live) {
  // A \r before the text begins a live line: there is nothing to show yet.
  if (!live || !pending_.empty()) sink_.line(*rank_, pending_, live);
  if (!pending_.empty()) {
    if (live_ && !last_lines_.empty()) last_lines_.pop_back();  // the new text overwrote it
    const bool whole = pending_.size() <= kLongestKeptLine;
    last_lines_.push_back(
        whole ? pending_ : cat(pending_.substr(0, kLongestKeptLine), "... (", pending_.size(), " bytes)"));
    if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  }
  pending_.clear();
  shown_ = 0;
  live_ = live;
}

void RankOutput::take(std::string_view bytes) {
  if (!rank_) {
    sink_.bytes(bytes);
    return;
  }
  for (const char byte : bytes) {
    if (after_return_ && byte != '\n') end_line(true);  // \r\n is one end of line
    after_return_ = byte == '\r';
    if (byte == '\n') {
      end_line(false);
    } else if (byte != '\r') {
      if (pending_.size() >= kLongestLine_bytes) end_line(false);
      pending_ += byte;
    }
  }
}

void RankOutput::show_pending() {
  if (std::exchange(after_return_, false)) end_line(true);
  if (!live_ || !sink_.terminal() || pending_.size() == shown_) return;
  sink_.line(*rank_, pending_, true);
  shown_ = pending_.size();
}

void RankOutput::finish() {
  if (std::exchange(after_return_, false)) end_line(true);
  if (!pending_.empty()) end_line(false);
}

}  // namespace trireme
