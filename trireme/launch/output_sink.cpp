#include "trireme/launch/output_sink.h"

#include <limits>

#include "trireme/base/clock.h"
#include "trireme/base/rank_list.h"

namespace trireme {

void OutputSink::write(const std::set<int>& ranks, std::string_view text, bool live) {
  if (live_ && terminal_) stream_ << "\033[K";  // a shorter line must not leave the end of a longer one
  stream_ << '[' << rank_list(ranks) << "] " << text << (live && terminal_ ? '\r' : '\n') << std::flush;
  live_ = live;
}

void OutputSink::gather(int rank, std::string_view text) {
  // Searches behind the last line of this rank, so that its lines keep their order.
  size_t candidate = gathered_.size();
  while (candidate > 0 && gathered_[candidate - 1].ranks.count(rank) == 0) --candidate;
  while (candidate < gathered_.size() && gathered_[candidate].text != text) ++candidate;
  if (candidate < gathered_.size()) {
    gathered_[candidate].ranks.insert(rank);
  } else {
    gathered_.push_back({{rank}, std::string(text), now_seconds()});
  }
}

void OutputSink::write_gathered(double until) {
  while (!gathered_.empty() && gathered_.front().since <= until) {
    const Gathered line = std::move(gathered_.front());
    gathered_.pop_front();
    write(line.ranks, line.text, false);
  }
}

void OutputSink::line(int rank, std::string_view text, bool live) {
  if (gather_seconds_ > 0 && !live) {
    gather(rank, text);
    return;
  }
  write_gathered(std::numeric_limits<double>::infinity());
  write({rank}, text, live);
}

void OutputSink::bytes(std::string_view bytes) {
  stream_ << bytes << std::flush;
}

void OutputSink::show_gathered() {
  write_gathered(now_seconds() - gather_seconds_);
}

void OutputSink::finish() {
  write_gathered(std::numeric_limits<double>::infinity());
  if (live_ && terminal_) stream_ << '\n' << std::flush;
  live_ = false;
}

}  // namespace trireme
