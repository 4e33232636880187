// Updates of units that run on a thread of their own while a pass over the model goes on: the optimizer's
// step on the host, or on tensors that come from a disk and go back there.
//
//   pass     submit(0) submit(1) submit(2)   wait(0) forward(0)   wait(1) forward(1)   ...
//   worker              [ update 0 ][ update 1 ][ update 2 ]
//
// Only what waits for a unit sees its new values; a unit's next use therefore waits for its own update
// (parameters_in_update.h), and for no other.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "trireme/device/device_memory_observer.h"

namespace trireme {

// Submitted to and waited for by one thread, that of the passes. A job may call no collective: ranks would
// disagree on the order.
//
// A job runs without autograd, with as many threads as its submitter has, counted in the rank's account. On a
// GPU it runs on a stream of its own, when the work that the submitter's stream had been given is done, and
// is done when its own stream has done its work.
//
// When a job throws, those after it are dropped, and every submit and wait from then on throws its exception:
// the parameters are of no step any more.
class DeferredUpdates {
 public:
  using Job = std::function<void()>;

  DeferredUpdates(const RankMemory& memory, at::Device device, size_t units);
  // Waits for the job at work. Queued jobs are discarded; the tensors they would update are being destroyed
  // too.
  ~DeferredUpdates() = default;
  DeferredUpdates& operator=(DeferredUpdates&&) = delete;

  // Jobs run one after another in the order in which they come.
  void submit(int unit, Job job);
  // Until no job of the unit, or none at all, waits or is at work; what a job held is free then.
  void wait(int unit);
  void wait_all();
  // In all waits so far, for jobs that were not done.
  double waited_seconds() const { return waited_seconds_; }
  // False also after a failure, which a wait then tells.
  bool pending(int unit) const;

 private:
  struct Task {
    int unit = 0;
    Job job;
    int threads = 1;
    std::optional<c10::Event> submitted;  // a point in the submitter's stream; none on a CPU
  };
  void serve(const std::stop_token& stop);
  std::exception_ptr run(Task& task);
  void throw_failure() const;  // with mutex_ held
  template <typename Done>
  void wait_until(const Done& done);

  const RankMemory memory_;
  const at::Device device_;
  std::optional<c10::Stream> stream_;  // none on a CPU

  double waited_seconds_ = 0;  // of the thread that waits
  mutable std::mutex mutex_;
  std::condition_variable_any submitted_;
  std::condition_variable finished_;
  std::deque<Task> queue_;
  std::vector<int64_t> pending_;  // jobs of each unit
  std::exception_ptr failure_;

  std::jthread worker_;  // last: stopped and joined before the rest goes
};

}  // namespace trireme
