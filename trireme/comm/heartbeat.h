// Detects a rank that died, hangs or cannot be reached while others wait for it without an error: in NCCL's
// collectives, which wait on the device. Uses the store where the ranks met, beside all computation:
//
//   each rank, every period        writes a sign of life; reads the next rank's sign and any report of a loss
//   the next rank silent too long  this rank reports the loss; every rank reads it within a period, and ends
//   a rank ends by an error        reports itself lost: the others need not wait for the silence
//   a rank's connection ends       our own store reports the rank lost (store_server.cpp)
//   the store is gone              it counts as lost, unless rank 0, which may hold it, had left in order: this
//                                  rank only takes longer to end
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/error.h"
#include "trireme/base/time_to_speak.h"

namespace trireme {

// Where the ranks of an attempt write their signs, in the store where they met.
std::string heartbeat_prefix(const std::string& attempt);
// Under that prefix: which rank is lost.
inline constexpr const char* kLostKey = "lost";

// Writes one rank's signs of life and reads those of the other ranks, by the caller's clock.
class LifeSigns {
 public:
  LifeSigns(c10::intrusive_ptr<c10d::Store> store, int rank, int size, double silence_seconds);

  // Writes a sign and reads the others. Returns a text on a lost rank, if any. Throws the store's exceptions.
  std::optional<std::string> look(double now_seconds);
  // As it was at the last look.
  bool rank_0_has_left() const { return rank_0_has_left_; }
  // This rank leaves: normally, or by an error, which it reports to the others. If it leaves normally, rank
  // 0, whose process may hold the store, waits for the others until `for_others` passes or one is lost. No
  // call of the store takes longer than `patience`. Throws the store's exceptions, and CommError where a rank
  // did not leave.
  void leave(bool by_error, std::chrono::milliseconds patience, std::chrono::milliseconds for_others);

 private:
  bool has(const std::string& key) { return store_->check({key}); }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_ = 0, size_ = 0, next_ = 0;
  double silence_seconds_ = 0;
  int64_t signs_ = 0;
  bool rank_0_has_left_ = false;
  std::string seen_;  // the next rank's last sign
  std::optional<double> seen_at_seconds_;
};

struct HeartbeatPace {
  std::chrono::milliseconds period = kHearsOfLoss;
  std::chrono::milliseconds silence{60000};
  std::chrono::milliseconds grace = kSpeaksOfLoss;  // from the detection to `on_lost`
  std::chrono::milliseconds patience{5000};         // with each call of the store when this rank leaves
};

class Heartbeat {
 public:
  // `store`: a connection on which nobody else waits. `on_lost` is called at most once, on a separate thread,
  // and must end the process: the rank's thread may wait for its device forever.
  Heartbeat(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const HeartbeatPace& pace,
            std::function<void(const CommError&)> on_lost);
  // Leaves: by an error if an exception unwinds the stack, else normally.
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
