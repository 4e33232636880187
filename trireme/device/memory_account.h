// Counts the bytes of one rank's tensors by what they are for. The engine opens a MemoryScope on its account;
// code further in opens one with its category alone, and what libtorch allocates on this thread meanwhile is
// counted there until it is freed, by whichever thread.
//
//   auto account = std::make_shared<MemoryAccount>();
//   const MemoryScope rank(account, MemoryCategory::other);
//   { const MemoryScope tile(MemoryCategory::tiles); x = at::empty(...); }
//   account->state().peak[MemoryCategory::tiles];
//
// The host's memory is counted by the caching allocator (cpu_caching_allocator.h; not at all without it), a GPU's by
// an observer of libtorch's own (device_memory_observer.h). Counted are the bytes asked for, not rounded. Beside a GPU
// the host's bytes stand by themselves: they are never part of what the device holds.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "trireme/device/memory_advice.h"
#include "trireme/device/memory_category.h"

namespace trireme {

struct MemoryUse {
  MemoryBytes now;
  MemoryBytes peak;     // of each category by itself, since the start or the last reset
  MemoryBytes at_peak;  // what each category held when the total was largest
  int64_t peak_total_bytes = 0;
};

// Of the device that computes.
struct MemoryState : MemoryUse {
  MemoryUse host;  // beside a GPU; nothing on a CPU
};

// Thread-safe.
class MemoryAccount {
 public:
  // `host`: where the host's tensors are counted; MemorySpace::device for a rank that computes on the CPU.
  explicit MemoryAccount(MemorySpace host = MemorySpace::device);

  void add(MemoryCategory category, int64_t bytes,
           MemorySpace space = MemorySpace::device);  // negative: given back
  void move(MemoryCategory from, MemoryCategory to, int64_t bytes, MemorySpace space = MemorySpace::device);
  MemoryState state() const;
  MemoryBytes held(MemorySpace space) const;  // now
  void reset_peaks();                         // to what is held now

  // What an out-of-memory error proposes; at first the options of a run of which nothing is known.
  void set_options(std::vector<MemoryOption> options);
  std::vector<MemoryOption> options(MemorySpace space) const;

 private:
  MemoryUse& use(MemorySpace space) { return counted_as(space) == MemorySpace::host ? state_.host : state_; }
  MemorySpace counted_as(MemorySpace space) const { return space == MemorySpace::host ? host_ : space; }

  const MemorySpace host_;
  mutable std::mutex mutex_;
  MemoryState state_;
  std::vector<MemoryOption> options_;
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
  MemoryScope& operator=(MemoryScope&&) = delete;

  static const MemoryPlace& here();  // this thread's

 private:
  MemoryPlace before_;
  bool changes_account_;
};

}  // namespace trireme
