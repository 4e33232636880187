// Counts the bytes of one rank's tensors by what they are for. The engine opens a MemoryScope on its account;
// code further in opens one with its category alone, and what libtorch allocates on this thread meanwhile is
// counted there until it is freed, by whichever thread.
//
//   auto account = std::make_shared<MemoryAccount>();
//   const MemoryScope rank(account, MemoryCategory::other);
//   { const MemoryScope tile(MemoryCategory::tiles); x = at::empty(...); }
//   account->state().peak[MemoryCategory::tiles];
//
// On the CPU the caching allocator counts (cpu_caching_allocator.h; nothing is counted without it), on a GPU
// an observer of libtorch's own (device_memory_observer.h). Counted are the bytes asked for, not rounded.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "trireme/device/memory_advice.h"
#include "trireme/device/memory_category.h"

namespace trireme {

struct MemoryState {
  MemoryBytes now;
  MemoryBytes peak;     // of each category by itself, since the start or the last reset
  MemoryBytes at_peak;  // what each category held when the total was largest
  int64_t peak_total_bytes = 0;
};

// Thread-safe.
class MemoryAccount {
 public:
  void add(MemoryCategory category, int64_t bytes);  // negative: given back
  void move(MemoryCategory from, MemoryCategory to, int64_t bytes);
  MemoryState state() const;
  void reset_peaks();  // to what is held now

  // What an out-of-memory error proposes; at first the options of a run of which nothing is known.
  void set_options(std::vector<MemoryOption> options);
  std::vector<MemoryOption> options() const;

 private:
  void count_peak(MemoryCategory category);

  mutable std::mutex mutex_;
  MemoryState state_;
  int64_t total_bytes_ = 0;
  std::vector<MemoryOption> options_ = usual_memory_options();
};

// Where allocations of a thread are counted.
struct MemoryPlace {
  std::shared_ptr<MemoryAccount> account;  // none: nowhere
  MemoryCategory category = MemoryCategory::other;
};

// From here to the end of its life, allocations of this thread are counted in a place; then in the one before
// again. Lives on the stack of one thread.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);  // of the account that this thread has, if any
  MemoryScope(std::shared_ptr<MemoryAccount> account, MemoryCategory category);
  // Of another thread's place, for a worker that allocates for it.
  explicit MemoryScope(const MemoryPlace& place) : MemoryScope(place.account, place.category) {}
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  static const MemoryPlace& here();  // this thread's

 private:
  MemoryPlace before_;
  bool changes_account_;
};

}  // namespace trireme
