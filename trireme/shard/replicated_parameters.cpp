// Values whole on every rank (ZeRO none, optimizer, gradients), so that a gather returns them directly. Where
// masters are sharded, a step gives a rank new values of its share alone. The ranks exchange shares at the
// unit's next use, so that a step needs no other rank, and begin while the unit before computes (but where
// another thread steps units):
//
//   close_master: values[this rank's share] = masters; stale
//   prefetch, gather: all-gather of shares -> values [E]
#include <deque>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/memory/through_pinned.h"
#include "trireme/shard/masters.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {
namespace {

class ReplicatedParameters final : public ParameterStore {
 public:
  ReplicatedParameters(const std::vector<FlatUnit>& units, Group& group, bool shard_masters,
                       const ParameterSettings& settings)
      : group_(group),
        sharded_(shard_masters),
        settings_(settings),
        shares_(owned_shares(units, group, shard_masters)),
        masters_(make_masters(shares_, settings)),
        stepped_(units.size()),
        refreshed_(units.size()),
        stale_(units.size()) {
    const MemoryScope scope(MemoryCategory::parameters);
    const auto options = at::TensorOptions().dtype(settings.compute_dtype).device(settings.device);
    for (const FlatUnit& unit : units) values_.push_back(at::zeros({unit.elements}, options));
  }

  // Where another thread steps units, the pass would wait for a unit's update before it computes the one
  // before.
  void prefetch(int unit) override {
    if (prefetch_is_collective()) begin_refresh(unit);
  }
  bool prefetch_is_collective() const override {
    return sharded_ && group_.size() > 1 && settings_.optimizer == Offload::none;
  }
  at::Tensor gather(int unit) override {
    refresh(unit);
    return values_.at(static_cast<size_t>(unit));
  }
  void release(int) override {}

  void prefetch_master(int unit) override {
    if (masters_) masters_->prefetch(unit);
  }
  const std::vector<UnitShare>& shares() const override { return shares_; }
  MasterShare open_master(int unit) override {
    TRIREME_ASSERT(!refreshed_.at(static_cast<size_t>(unit)), "unit ", unit,
                   " is stepped before it is gathered");
    MasterShare& stepped = stepped_.at(static_cast<size_t>(unit)) = {};
    stepped = open_share(own_values(unit), masters_ ? masters_->open(unit) : at::Tensor(), settings_);
    return stepped;
  }
  void close_master(int unit) override {
    const MemoryScope scope(MemoryCategory::parameters);
    MasterShare& stepped = stepped_.at(static_cast<size_t>(unit));
    at::Tensor share = own_values(unit);
    if (!stepped.values.defined() && share.data_ptr() != stepped.whole.data_ptr())
      copy_through_pinned(share, stepped.whole, settings_.pinned.get());
    stepped = {};
    if (masters_) masters_->close(unit, true);
    stale_[static_cast<size_t>(unit)] = sharded_ && group_.size() > 1;
  }

  at::Tensor whole_master(int unit) override {
    const at::Tensor& values = values_.at(static_cast<size_t>(unit));
    if (!masters_) {
      refresh(unit);
      return values;
    }
    const at::Tensor stored = masters_->open(unit);
    const bool split = splits_masters(settings_);
    if (split) refresh(unit);  // an exchange in progress writes to the values
    const at::Tensor master = split ? MasterShare{{}, stored, own_values(unit)}.fp32() : stored;
    at::Tensor whole = gather_shares(group_, master, sharded_, settings_.device);
    if (whole.is_same(stored) && settings_.optimizer == Offload::disk) whole = whole.clone();
    masters_->close(unit, false);
    return whole;
  }

 private:
  // All ranks stepped the same units, so that all exchange values or none does.
  void begin_refresh(int unit) {
    auto& refreshed = refreshed_.at(static_cast<size_t>(unit));
    if (!stale_.at(static_cast<size_t>(unit)) || refreshed) return;
    const MemoryScope scope(MemoryCategory::communication);
    const at::Tensor& whole = values_[static_cast<size_t>(unit)];
    const at::Tensor share = own_values(unit);
    refreshed.emplace(begin_all_gather(group_, share, equal_shares(share.size(0), group_.size()), whole));
  }
  void refresh(int unit) {
    begin_refresh(unit);
    auto& refreshed = refreshed_.at(static_cast<size_t>(unit));
    if (!refreshed) return;
    const MemoryScope scope(MemoryCategory::communication);
    refreshed->wait();
    refreshed.reset();
    stale_[static_cast<size_t>(unit)] = false;
  }
  at::Tensor own_values(int unit) const {
    const UnitShare& share = shares_.at(static_cast<size_t>(unit));
    return values_.at(static_cast<size_t>(unit)).narrow(0, share.begin, share.elements);
  }

  Group& group_;
  bool sharded_;
  ParameterSettings settings_;
  std::vector<UnitShare> shares_;
  std::vector<at::Tensor> values_;
  std::unique_ptr<UnitTensors> masters_;               // null: the values are the masters
  std::vector<MasterShare> stepped_;                   // of units between open_master and close_master
  std::vector<std::optional<PendingRows>> refreshed_;  // exchanges of values in progress
  std::deque<bool> stale_;  // other ranks' shares are old; not vector<bool>: threads set other units' flags
};

}  // namespace

std::unique_ptr<ParameterStore> make_replicated_parameters(const std::vector<FlatUnit>& units, Group& group,
                                                           bool shard_masters,
                                                           const ParameterSettings& settings) {
  return std::make_unique<ReplicatedParameters>(units, group, shard_masters, settings);
}

}  // namespace trireme
