// Output that does not block the launcher: while a reader pauses (`| less`, Control-S), the launcher must
// watch ranks and answer other machines.
//
//   text -> backlog -> a thread that writes it to the descriptor, as fast as its reader reads
#pragma once

#include <memory>
#include <ostream>

namespace trireme {

class BacklogStream : public std::ostream {
 public:
  // A write waits only while the backlog holds `most_bytes` or more. The writer thread blocks all signals.
  explicit BacklogStream(int descriptor, size_t most_bytes = size_t{64} << 20);
  // Waits until all is written, or the reader is gone.
  ~BacklogStream() override;
  BacklogStream& operator=(BacklogStream&&) = delete;

 private:
  class Backlog;
  std::unique_ptr<Backlog> backlog_;
};

}  // namespace trireme
