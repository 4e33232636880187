#include "trireme/device/memory_account.h"

#include <algorithm>
#include <utility>

namespace trireme {
namespace {

// The one state that is not passed: libtorch calls its allocator from deep inside an operation and hands over
// a number of bytes only, so who asks, and for what, can be known from the calling thread alone.
MemoryPlace& place_of_thread() {
  thread_local MemoryPlace place;
  return place;
}

}  // namespace

void MemoryAccount::count_peak(MemoryCategory category) {
  state_.peak[category] = std::max(state_.peak[category], state_.now[category]);
  if (total_bytes_ > state_.peak_total_bytes) {
    state_.peak_total_bytes = total_bytes_;
    state_.at_peak = state_.now;
  }
}

void MemoryAccount::add(MemoryCategory category, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  state_.now[category] += bytes;
  total_bytes_ += bytes;
  count_peak(category);
}

void MemoryAccount::move(MemoryCategory from, MemoryCategory to, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  state_.now[from] -= bytes;
  state_.now[to] += bytes;
  count_peak(to);
}

MemoryState MemoryAccount::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void MemoryAccount::reset_peaks() {
  const std::lock_guard lock(mutex_);
  state_.peak = state_.at_peak = state_.now;
  state_.peak_total_bytes = total_bytes_;
}

void MemoryAccount::set_options(std::vector<MemoryOption> options) {
  const std::lock_guard lock(mutex_);
  options_ = std::move(options);
}

std::vector<MemoryOption> MemoryAccount::options() const {
  const std::lock_guard lock(mutex_);
  return options_;
}

MemoryScope::MemoryScope(MemoryCategory category) : changes_account_(false) {
  before_.category = std::exchange(place_of_thread().category, category);
}

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account, MemoryCategory category)
    : before_(std::exchange(place_of_thread(), {std::move(account), category})), changes_account_(true) {}

MemoryScope::~MemoryScope() {
  MemoryPlace& place = place_of_thread();
  place.category = before_.category;
  if (changes_account_) place.account = std::move(before_.account);
}

const MemoryPlace& MemoryScope::here() {
  return place_of_thread();
}

}  // namespace trireme
