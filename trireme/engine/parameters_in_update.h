// A parameter store as the model executor sees it while units are stepped on another thread: each use of a
// unit waits for that unit's own update, and for no other. Never stale weights, and no waiting for more than
// is read.
#pragma once

#include "trireme/engine/deferred_updates.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

// Used by the thread that waits for updates. The jobs themselves work on `store`.
class ParametersInUpdate final : public ParameterStore {
 public:
  ParametersInUpdate(ParameterStore& store, DeferredUpdates& updates) : store_(store), updates_(updates) {}

  at::Tensor gather(int unit) override {
    updates_.wait(unit);
    return store_.gather(unit);
  }
  void release(int unit) override { store_.release(unit); }
  void prefetch(int unit) override {
    // A read ahead of a unit still in update would come too early, and waiting would cost more than it saves.
    // What all ranks begin together cannot be left out by some.
    if (!store_.prefetch_is_collective() && updates_.pending(unit)) return;
    updates_.wait(unit);
    store_.prefetch(unit);
  }
  void prefetch_later(int unit) override {
    if (!updates_.pending(unit)) store_.prefetch_later(unit);
  }
  bool prefetch_is_collective() const override { return store_.prefetch_is_collective(); }

  const std::vector<UnitShare>& shares() const override { return store_.shares(); }
  MasterShare open_master(int unit) override {
    updates_.wait(unit);
    return store_.open_master(unit);
  }
  void close_master(int unit) override { store_.close_master(unit); }
  void prefetch_master(int unit) override {
    updates_.wait(unit);
    store_.prefetch_master(unit);
  }
  at::Tensor whole_master(int unit) override {
    updates_.wait(unit);
    return store_.whole_master(unit);
  }

 private:
  ParameterStore& store_;
  DeferredUpdates& updates_;
};

}  // namespace trireme
