// Output that nobody waits for: a reader that pauses (`| less`, Control-S) must not stop the launcher, which watches over
// ranks and answers other machines.
//
//   text -> backlog -> a thread that writes it to the descriptor, as fast as its reader reads
#pragma once

#include <memory>
#include <ostream>

namespace trireme {

class BacklogStream : public std::ostream {
 public:
  // Writing waits only while `most_bytes` lie in the backlog. Blocks all signals in its thread.
  explicit BacklogStream(int descriptor, size_t most_bytes = size_t{64} << 20);
  // Waits until all is written, or the reader is gone.
  ~BacklogStream() override;
  BacklogStream& operator=(BacklogStream&&) = delete;

 private:
  class Backlog;
  std::unique_ptr<Backlog> backlog_;
};

}  // namespace trireme
