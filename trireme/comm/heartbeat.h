// Finds a rank that died, hangs or cannot be reached while the others wait for it where no error comes: in NCCL's
// collectives, which wait on the device. Through the store where ranks met, beside all computation:
//
//   each rank, every period        writes a sign of life; reads the next rank's, and whether a rank was reported lost
//   the next rank silent too long  this rank reports it lost; every rank reads that within a period, and ends
//   a rank ends by an error        reports itself lost: the others need not wait for the silence
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/error.h"

namespace trireme {

// One rank's signs and what it reads of the others', by the caller's clock.
class LifeSigns {
 public:
  LifeSigns(c10::intrusive_ptr<c10d::Store> store, int rank, int size, double silence_seconds);

  // Gives a sign and looks around; says which rank is lost, if any is. Throws what the store throws.
  std::optional<std::string> look(double now_seconds);
  // This rank goes: in order, or by an error that the others are told of. Rank 0, whose process may hold the store, then
  // waits until all have gone. No call of the store takes longer than `patience`.
  void leave(bool by_error, std::chrono::milliseconds patience);

 private:
  bool has(const std::string& key) { return store_->check({key}); }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_ = 0, size_ = 0, next_ = 0;
  double silence_seconds_ = 0;
  int64_t signs_ = 0;
  std::string seen_;  // the next rank's last sign
  std::optional<double> seen_at_seconds_;
};

struct HeartbeatPace {
  std::chrono::milliseconds period{3000};
  std::chrono::milliseconds silence{60000};
  // From the news to `on_lost`: a rank that is ending already, by the same error, says so itself.
  std::chrono::milliseconds grace{5000};
};

class Heartbeat {
 public:
  // `store`: a connection that nobody else waits on. `on_lost` is called at most once, on a thread of its own, and is
  // expected to end the process: the rank's thread may wait on its device for ever.
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const HeartbeatPace& pace,
            std::function<void(const CommError&)> on_lost);
  // Leaves: by an error while an exception unwinds the stack, else in order.
  ~Heartbeat();
  Heartbeat& operator=(Heartbeat&&) = delete;

 private:
  void serve(const std::stop_token& stop);

  LifeSigns signs_;
  int rank_ = 0;
  HeartbeatPace pace_;
  std::function<void(const CommError&)> on_lost_;
  std::jthread thread_;
};

}  // namespace trireme
