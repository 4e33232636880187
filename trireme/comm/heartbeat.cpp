#include "trireme/comm/heartbeat.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/last_words.h"

namespace trireme {
namespace {

std::string key_of(const char* what, int rank) {
  return cat(what, "/", rank);
}

}  // namespace

std::string heartbeat_prefix(const std::string& attempt) {
  return cat("trireme/", attempt, "/heartbeat");
}

LifeSigns::LifeSigns(c10::intrusive_ptr<c10d::Store> store, int rank, int size, double silence_seconds)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      next_((rank + 1) % size),
      silence_seconds_(silence_seconds) {}

std::optional<std::string> LifeSigns::look(double now_seconds) {
  store_->set(key_of("sign", rank_), std::to_string(++signs_));
  if (has(kLostKey)) return store_->get_to_str(kLostKey);
  rank_0_has_left_ = has(key_of("left", 0));
  if (!seen_at_seconds_) seen_at_seconds_ = now_seconds;
  if (has(key_of("left", next_))) return std::nullopt;
  if (const std::string key = key_of("sign", next_); has(key)) {
    const std::string sign = store_->get_to_str(key);
    if (sign != std::exchange(seen_, sign)) seen_at_seconds_ = now_seconds;
  }
  const double silent_seconds = now_seconds - *seen_at_seconds_;
  if (silent_seconds <= silence_seconds_) return std::nullopt;
  const std::string lost =
      cat("rank ", next_, " has given no sign of life for ", static_cast<int64_t>(silent_seconds),
          " s: its process or machine is dead, stopped or cannot be reached");
  store_->set(kLostKey, lost);
  return lost;
}

void LifeSigns::leave(bool by_error, std::chrono::milliseconds patience,
                      std::chrono::milliseconds for_others) {
  store_->setTimeout(patience);
  if (by_error) {
    if (!has(kLostKey)) store_->set(kLostKey, cat("rank ", rank_, " ended by an error; ", kAnotherSaysWhy));
    return;
  }
  store_->set(key_of("left", rank_), "1");
  if (rank_ != 0) return;
  std::vector<std::string> others;
  for (int rank = 1; rank < size_; ++rank) others.push_back(key_of("left", rank));
  constexpr std::chrono::milliseconds kPause(50);
  for (auto waited = kPause; !store_->check(others) && !has(kLostKey); waited += kPause) {
    if (waited > for_others) throw CommError("ranks have not left");
    std::this_thread::sleep_for(kPause);
  }
}

Heartbeat::Heartbeat(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const HeartbeatPace& pace,
                     std::function<void(const CommError&)> on_lost)
    : signs_(std::move(store), rank, size, std::chrono::duration<double>(pace.silence).count()),
      rank_(rank),
      pace_(pace),
      on_lost_(std::move(on_lost)),
      thread_([this](const std::stop_token& stop) { serve(stop); }) {}

Heartbeat::~Heartbeat() {
  thread_.request_stop();
  thread_.join();
  try {
    // The others may take long to end: they give back what they pinned for offload first.
    signs_.leave(std::uncaught_exceptions() > 0, pace_.patience, pace_.silence);
  } catch (const std::exception&) {
    // The store is gone, so no rank can read this any more, or a rank never left.
  }
}

void Heartbeat::serve(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  const auto stopped_within = [&](std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return never.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
  };
  std::optional<std::string> lost;
  while (!lost) {
    try {
      lost = signs_.look(now_seconds());
    } catch (const std::exception&) {
      if (signs_.rank_0_has_left()) return;
      lost =
          "the store where the ranks met cannot be reached: the process or machine that holds it, "
          "rank 0's or the launcher's, is dead";
    }
    if (stopped_within(lost ? pace_.grace : pace_.period)) return;
  }
  on_lost_(CommError(cat("the run has lost a rank, says rank ", rank_, ": ", *lost)));
}

}  // namespace trireme
