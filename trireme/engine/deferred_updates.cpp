#include "trireme/engine/deferred_updates.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trireme/base/clock.h"

namespace trireme {

DeferredUpdates::DeferredUpdates(const RankMemory& memory, at::Device device, size_t units)
    : memory_(memory), device_(device), pending_(units) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
  worker_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

void DeferredUpdates::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void DeferredUpdates::submit(int unit, Job job) {
  Task task{unit, std::move(job), at::get_num_threads(), {}};
  if (stream_) {
    task.submitted.emplace(device_.type());
    task.submitted->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
    ++pending_.at(static_cast<size_t>(unit));
    queue_.push_back(std::move(task));
  }
  submitted_.notify_one();
}

template <typename Done>
void DeferredUpdates::wait_until(const Done& done) {
  const double begin = now_seconds();
  std::unique_lock lock(mutex_);
  if (!done()) {
    finished_.wait(lock, done);
    waited_seconds_ += now_seconds() - begin;
  }
  throw_failure();
}

void DeferredUpdates::wait(int unit) {
  wait_until([&] { return pending_.at(static_cast<size_t>(unit)) == 0; });
}

void DeferredUpdates::wait_all() {
  wait_until([this] { return std::ranges::all_of(pending_, [](int64_t jobs) { return jobs == 0; }); });
}

bool DeferredUpdates::pending(int unit) const {
  const std::lock_guard lock(mutex_);
  return pending_.at(static_cast<size_t>(unit)) > 0;
}

std::exception_ptr DeferredUpdates::run(Task& task) {
  try {
    if (at::get_num_threads() != task.threads) at::set_num_threads(task.threads);
    if (!stream_) {
      task.job();
    } else {
      const c10::StreamGuard guard(*stream_);
      // By this thread, not by the stream alone: the host may write what copies to the device still read.
      task.submitted->synchronize();
      task.job();
      stream_->synchronize();
    }
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void DeferredUpdates::serve(const std::stop_token& stop) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  // Events end with their tasks: on a thread of GPU 0 that would make a context there, half a GiB for each rank.
  const c10::OptionalDeviceGuard device(stream_ ? std::optional(stream_->device()) : std::nullopt);
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      submitted_.wait(lock, stop, [this] { return !queue_.empty(); });
      if (stop.stop_requested()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    const std::exception_ptr failure = run(task);
    // Whoever waits may count on the room that its tensors took.
    task.job = nullptr;
    std::deque<Task> dropped;
    {
      const std::lock_guard lock(mutex_);
      if (failure) {
        failure_ = failure;
        dropped.swap(queue_);
        pending_.assign(pending_.size(), 0);
      } else {
        --pending_[static_cast<size_t>(task.unit)];
      }
    }
    finished_.notify_all();
  }
}

}  // namespace trireme
