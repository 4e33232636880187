// ZeRO stage 3: every rank keeps its share of each unit; a gather puts the unit together, and it is gone after its
// release. A prefetch begins the gather, or the read of a share on disk, or alone on a GPU the copy of one on the host,
// while the unit before computes.
//
//   share [E / ranks] -> device -> all-gather -> unit [E]
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/masters.h"
#include "trireme/shard/parameter_store.h"
#include "trireme/shard/unit_uploads.h"

namespace trireme {
namespace {

class ShardedParameters final : public ParameterStore {
 public:
  ShardedParameters(const std::vector<FlatUnit>& units, Group& group, const ParameterSettings& settings)
      : group_(group),
        settings_(settings),
        shares_(owned_shares(units, group, true)),
        masters_(make_masters(shares_, settings)),
        stepped_(units.size()),
        gathered_(units.size()) {
    std::vector<int64_t> elements;
    for (const UnitShare& share : shares_) elements.push_back(share.elements);
    for (const FlatUnit& unit : units) unit_elements_.push_back(unit.elements);
    const MemoryScope scope(MemoryCategory::parameters);
    values_ = make_unit_tensors(elements, settings.compute_dtype, settings.device, settings.parameters,
                                settings.spill);
    if (settings.parameters == Offload::cpu && !settings.device.is_cpu())
      uploads_ =
          std::make_unique<UnitUploads>(units.size(), settings.device, make_copy_stream(settings.device));
  }

  void prefetch(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    if (gathered.whole.defined() || gathered.pending) return;
    // A read from disk and a gather do not both fit into the time of one unit: the read goes ahead.
    if (prefetch_is_collective()) {
      begin_gather(unit, gathered);
    } else if (uploads_) {
      uploads_->begin(unit, values_->open(unit));
    } else {
      values_->prefetch(unit);
    }
  }
  bool prefetch_is_collective() const override { return !alone() && settings_.parameters != Offload::disk; }
  at::Tensor gather(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    TRIREME_ASSERT(!gathered.whole.defined(), "unit ", unit, " is gathered already");
    if (alone()) {
      gathered.whole = share_on_device(unit);
      return gathered.whole;
    }
    if (!gathered.pending) begin_gather(unit, gathered);
    gathered.whole = gathered.pending->wait();
    gathered.pending.reset();
    values_->close(unit, false);
    return gathered.whole;
  }
  void release(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    gathered.whole = at::Tensor();
    if (alone()) values_->close(unit, false);
  }

  void prefetch_master(int unit) override {
    if (masters_) masters_->prefetch(unit);
    values_->prefetch(unit);
  }
  at::Tensor open_master(int unit) override {
    Stepped& stepped = stepped_.at(static_cast<size_t>(unit));
    if (uploads_) uploads_->drop(unit);
    stepped.values = values_->open(unit);
    stepped.master = masters_ ? masters_->open(unit)
                              : stepped.values.to(step_device(settings_.device, settings_.optimizer));
    return stepped.master;
  }
  void close_master(int unit) override {
    Stepped& stepped = stepped_.at(static_cast<size_t>(unit));
    if (stepped.values.data_ptr() != stepped.master.data_ptr()) stepped.values.copy_(stepped.master);
    stepped = {};
    values_->close(unit, true);
    if (masters_) masters_->close(unit, true);
  }

  at::Tensor whole_master(int unit) override {
    UnitTensors& masters = masters_ ? *masters_ : *values_;
    const at::Tensor master = masters.open(unit);
    at::Tensor whole = gather_shares(group_, master, unit_elements_.at(static_cast<size_t>(unit)), !alone(),
                                     settings_.device);
    // What was opened may not be read after its close.
    if (whole.is_same(master)) whole = whole.clone();
    masters.close(unit, false);
    return whole;
  }
  void set(int unit, const at::Tensor& whole) override {
    const UnitShare& share = shares_.at(static_cast<size_t>(unit));
    const at::Tensor own = whole.narrow(0, share.begin, share.elements);
    if (uploads_) uploads_->drop(unit);
    values_->open(unit).copy_(own);
    values_->close(unit, true);
    if (!masters_) return;
    masters_->open(unit).copy_(own);
    masters_->close(unit, true);
  }

 private:
  struct Gathered {
    at::Tensor whole;
    std::optional<PendingRows> pending;
  };
  // Open between open_master and close_master.
  struct Stepped {
    at::Tensor values, master;
  };
  bool alone() const { return group_.size() == 1; }
  at::Tensor share_on_device(int unit) {
    const at::Tensor share = values_->open(unit);
    return uploads_ ? uploads_->finish(unit, share) : share.to(settings_.device);
  }
  void begin_gather(int unit, Gathered& gathered) {
    const int64_t elements = unit_elements_.at(static_cast<size_t>(unit));
    const MemoryScope scope(MemoryCategory::parameters);
    gathered.pending.emplace(
        begin_all_gather(group_, share_on_device(unit).contiguous(), share_sizes(elements, group_.size())));
  }

  Group& group_;
  ParameterSettings settings_;
  std::vector<UnitShare> shares_;
  std::vector<int64_t> unit_elements_;
  std::unique_ptr<UnitTensors> values_;
  std::unique_ptr<UnitUploads> uploads_;  // null, but for shares that lie on the host of a GPU
  std::unique_ptr<UnitTensors> masters_;  // null: the values are the masters
  std::vector<Stepped> stepped_;
  std::vector<Gathered> gathered_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_sharded_parameters(const std::vector<FlatUnit>& units, Group& group,
                                                        const ParameterSettings& settings) {
  return std::make_unique<ShardedParameters>(units, group, settings);
}

}  // namespace trireme
