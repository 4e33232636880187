#include "trireme/launch/rank_output.h"

namespace trireme {
namespace {

constexpr size_t kLastLines = 12;

}  // namespace

void OutputSink::line(std::string_view prefix, std::string_view text, bool live) {
  if (live_ && terminal_) stream_ << "\033[K";  // a shorter line must not leave the end of a longer one
  stream_ << prefix << text << (live && terminal_ ? '\r' : '\n') << std::flush;
  live_ = live;
}

void OutputSink::bytes(std::string_view bytes) {
  stream_ << bytes << std::flush;
}

void OutputSink::finish() {
  if (live_ && terminal_) stream_ << '\n' << std::flush;
  live_ = false;
}

void RankOutput::end_line(bool live) {
  // A return before the text begins a live line: nothing to show yet.
  if (!live || !pending_.empty()) sink_.line(*prefix_, pending_, live);
  if (!pending_.empty()) {
    if (live_ && !last_lines_.empty()) last_lines_.pop_back();  // it overwrote that state of the line
    last_lines_.push_back(pending_);
    if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  }
  pending_.clear();
  shown_ = 0;
  live_ = live;
}

void RankOutput::take(std::string_view bytes) {
  if (!prefix_) {
    sink_.bytes(bytes);
    return;
  }
  for (const char byte : bytes) {
    if (after_return_) {
      after_return_ = false;
      if (byte == '\n') {  // \r\n is one end of line
        end_line(false);
        continue;
      }
      end_line(true);
    }
    if (byte == '\n') {
      end_line(false);
    } else if (byte == '\r') {
      after_return_ = true;
    } else {
      pending_ += byte;
    }
  }
}

void RankOutput::show_pending() {
  if (after_return_) {
    after_return_ = false;
    end_line(true);
  }
  if (!live_ || !sink_.terminal() || pending_.size() == shown_) return;
  sink_.line(*prefix_, pending_, true);
  shown_ = pending_.size();
}

void RankOutput::finish() {
  if (after_return_) {
    after_return_ = false;
    end_line(true);
  }
  if (!pending_.empty()) end_line(false);
}

}  // namespace trireme
