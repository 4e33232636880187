// Counts the bytes of one rank's tensors by purpose. The engine opens a MemoryScope on its account; inner
// code opens a scope with a category only. Memory that libtorch allocates on this thread is counted in the
// innermost scope until any thread frees it.
//
//   auto account = std::make_shared<MemoryAccount>();
//   const MemoryScope rank(account, MemoryCategory::other);
//   { const MemoryScope tile(MemoryCategory::tiles); x = at::empty(...); }
//   account->state().peak[MemoryCategory::tiles];
//
// The caching allocator counts host memory (cpu_caching_allocator.h; without it, nothing does). An observer
// of libtorch's allocator counts GPU memory (device_memory_observer.h). Both count the bytes requested, not
// rounded. With a GPU, host bytes are counted separately, never as bytes of the device.
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

// The memory of the device that computes.
struct MemoryState : MemoryUse {
  MemoryUse host;  // if the device is a GPU; else zero
};

// Thread-safe.
class MemoryAccount {
 public:
  // `host`: where the host's tensors are counted; MemorySpace::device for a rank that computes on the CPU.
  explicit MemoryAccount(MemorySpace host = MemorySpace::device);

  void add(MemoryCategory category, int64_t bytes,
           MemorySpace space = MemorySpace::device);  // negative: freed
  void move(MemoryCategory from, MemoryCategory to, int64_t bytes, MemorySpace space = MemorySpace::device);
  MemoryState state() const;
  MemoryBytes held(MemorySpace space) const;  // now
  void reset_peaks();                         // to what is held now

  // The options that an out-of-memory error proposes; initially usual_memory_options().
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

// The account and the category in which a thread's allocations are counted.
struct MemoryOwner {
  std::shared_ptr<MemoryAccount> account;  // none: nowhere
  MemoryCategory category = MemoryCategory::other;
};

// While a scope lives, allocations of this thread are counted in its account and category. Its end restores
// the previous ones. A scope lives on the stack of one thread.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);  // keeps this thread's account, if any
  MemoryScope(std::shared_ptr<MemoryAccount> account, MemoryCategory category);
  // The scope of another thread, for a worker that allocates for that thread.
  explicit MemoryScope(const MemoryOwner& owner) : MemoryScope(owner.account, owner.category) {}
  ~MemoryScope();
  MemoryScope& operator=(MemoryScope&&) = delete;

  static const MemoryOwner& current();  // this thread's

 private:
  MemoryOwner before_;
  bool changes_account_;
};

}  // namespace trireme
