// ZeRO stage 3: every rank keeps its share of each unit; a gather puts the unit together, and it is gone after its
// release. A prefetch begins the gather, or the read of a share on disk, while the unit before computes.
//
//   share [E / ranks] -> device -> all-gather -> unit [E]
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/masters.h"
#include "trireme/shard/parameter_store.h"

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
  }

  void prefetch(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    if (gathered.whole.defined() || gathered.pending) return;
    // A read from disk and a gather do not both fit into the time of one unit: the read goes ahead.
    if (alone() || settings_.parameters == Offload::disk) {
      values_->prefetch(unit);
    } else {
      begin_gather(unit, gathered);
    }
  }
  at::Tensor gather(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    TRIREME_ASSERT(!gathered.whole.defined(), "unit ", unit, " is gathered already");
    if (alone()) {
      gathered.whole = values_->open(unit).to(settings_.device);
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
    const at::Tensor values = values_->open(unit);
    opened_values_ = values;
    at::Tensor& stepped = stepped_.at(static_cast<size_t>(unit));
    stepped = masters_ ? masters_->open(unit) : values.to(step_device(settings_));
    return stepped;
  }
  void close_master(int unit) override {
    at::Tensor& stepped = stepped_.at(static_cast<size_t>(unit));
    if (opened_values_.data_ptr() != stepped.data_ptr()) opened_values_.copy_(stepped);
    opened_values_ = stepped = at::Tensor();
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
  bool alone() const { return group_.size() == 1; }
  void begin_gather(int unit, Gathered& gathered) {
    const int64_t elements = unit_elements_.at(static_cast<size_t>(unit));
    const MemoryScope scope(MemoryCategory::parameters);
    gathered.pending.emplace(begin_all_gather(group_, values_->open(unit).to(settings_.device).contiguous(),
                                              share_sizes(elements, group_.size())));
  }

  Group& group_;
  ParameterSettings settings_;
  std::vector<UnitShare> shares_;
  std::vector<int64_t> unit_elements_;
  std::unique_ptr<UnitTensors> values_;
  std::unique_ptr<UnitTensors> masters_;  // null: the values are the masters
  std::vector<at::Tensor> stepped_;
  at::Tensor opened_values_;
  std::vector<Gathered> gathered_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_sharded_parameters(const std::vector<FlatUnit>& units, Group& group,
                                                        const ParameterSettings& settings) {
  return std::make_unique<ShardedParameters>(units, group, settings);
}

}  // namespace trireme
