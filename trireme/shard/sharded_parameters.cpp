// ZeRO stage 3: every rank keeps its share of each unit. A gather joins the shares to the whole unit, and
// release frees that. The transfers for a unit run while units before it compute:
//
//   share [E / ranks]   (disk -> host) -> device -> all-gather -> unit [E]
//
//   share on            begun two units ahead       begun one unit ahead
//   the device                                      gather
//   the host of a GPU   over several ranks: upload  gather after that upload; one rank: upload
//   disk, with a GPU    read                        upload; over several ranks, the gather after it
//   disk, on a CPU                                  read
//
// The computation waits only for transfers that began at least a unit earlier. Where a GPU's share is read
// from disk, this thread waits for the read of the next unit.
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/sum_of.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/memory/through_pinned.h"
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
    const MemoryScope scope(MemoryCategory::parameters);
    const bool travels = settings.parameters != Offload::none && settings.copies != nullptr;
    values_ = make_unit_tensors(elements, settings.compute_dtype, settings.device, settings.parameters,
                                settings.spill, travels ? settings.pinned : nullptr);
    if (travels) uploads_ = std::make_unique<UnitUploads>(units.size(), settings.device, settings.copies);
  }

  void prefetch(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    if (gathered.whole.defined() || gathered.pending) return;
    if (prefetch_is_collective()) {
      begin_gather(unit, gathered);
    } else if (uploads_) {
      begin_upload(unit);
    } else {
      values_->prefetch(unit);
    }
  }
  void prefetch_later(int unit) override {
    if (!uploads_ || uploads_->begun(unit)) return;
    if (settings_.parameters == Offload::disk) {
      values_->prefetch(unit);
    } else if (!alone()) {
      begin_upload(unit);
    }
  }
  // On a CPU, the time of one unit is too short for both a disk read and a gather: only the read runs ahead.
  bool prefetch_is_collective() const override {
    return !alone() && (settings_.parameters != Offload::disk || uploads_);
  }
  at::Tensor gather(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    TRIREME_ASSERT(!gathered.whole.defined(), "unit ", unit, " is gathered already");
    if (alone()) {
      if (uploads_) begin_upload(unit);
      gathered.whole = uploads_ ? uploads_->finish(unit) : values_->open(unit);
      return gathered.whole;
    }
    if (!gathered.pending) begin_gather(unit, gathered);
    gathered.whole = gathered.pending->wait();
    gathered.pending.reset();
    if (!uploads_) values_->close(unit, false);
    return gathered.whole;
  }
  void release(int unit) override {
    Gathered& gathered = gathered_.at(static_cast<size_t>(unit));
    gathered.whole = at::Tensor();
    if (alone() && !uploads_) values_->close(unit, false);
  }

  void prefetch_master(int unit) override {
    if (masters_) masters_->prefetch(unit);
    values_->prefetch(unit);
  }
  const std::vector<UnitShare>& shares() const override { return shares_; }
  MasterShare open_master(int unit) override {
    Stepped& stepped = stepped_.at(static_cast<size_t>(unit)) = {};
    if (uploads_) uploads_->drop(unit);
    stepped.values = values_->open(unit);
    stepped.master = open_share(stepped.values, masters_ ? masters_->open(unit) : at::Tensor(), settings_);
    return stepped.master;
  }
  void close_master(int unit) override {
    const MemoryScope scope(MemoryCategory::parameters);
    Stepped& stepped = stepped_.at(static_cast<size_t>(unit));
    const at::Tensor& stepped_values =
        stepped.master.values.defined() ? stepped.master.values : stepped.master.whole;
    if (comes_back(stepped_values))
      uploads_->bring_back(unit, stepped.values, stepped_values);
    else if (stepped.values.data_ptr() != stepped_values.data_ptr())
      copy_through_pinned(stepped.values, stepped_values, settings_.pinned.get());
    stepped = {};
    values_->close(unit, true);
    if (masters_) masters_->close(unit, true);
  }

  at::Tensor whole_master(int unit) override {
    if (uploads_ && !masters_) uploads_->drop(unit);
    const bool split = splits_masters(settings_), reads_values = split || !masters_;
    const at::Tensor values = reads_values ? values_->open(unit) : at::Tensor();
    const at::Tensor stored = masters_ ? masters_->open(unit) : values;
    const at::Tensor master = split ? MasterShare{{}, stored, values}.fp32() : stored;
    at::Tensor whole = gather_shares(group_, master, !alone(), settings_.device);
    // An opened tensor may not be read after its close.
    if (whole.is_same(stored)) whole = whole.clone();
    if (reads_values) values_->close(unit, false);
    if (masters_) masters_->close(unit, false);
    return whole;
  }

 private:
  struct Gathered {
    at::Tensor whole;
    std::optional<PendingRows> pending;
  };
  // A unit's tensors between open_master and close_master.
  struct Stepped {
    at::Tensor values;
    MasterShare master;
  };
  bool alone() const { return group_.size() == 1; }
  // Stepped on the device, in the thread of the pass, which does not wait for the copy to the host. A disk's
  // values are written when they are closed.
  bool comes_back(const at::Tensor& stepped_values) const {
    return uploads_ && settings_.parameters == Offload::cpu && !stepped_values.is_cpu();
  }
  // Does nothing when the unit's upload has begun already.
  void begin_upload(int unit) {
    if (uploads_->begun(unit)) return;
    at::Tensor share = values_->open(unit);
    const CopyStream::Mark copied = uploads_->begin(unit, share);
    values_->close(unit, false);
    if (settings_.parameters != Offload::disk) return;
    PinnedPool::in_use_until(share, copied);
    // Holds this share, so that the next read reuses the memory of the share before, whose copy is older.
    last_uploaded_ = std::move(share);
  }
  void begin_gather(int unit, Gathered& gathered) {
    const std::vector<int64_t> shares =
        equal_shares(shares_.at(static_cast<size_t>(unit)).elements, group_.size());
    const MemoryScope scope(MemoryCategory::parameters);
    if (!uploads_) {
      gathered.pending.emplace(begin_all_gather(group_, values_->open(unit).contiguous(), shares));
      return;
    }
    begin_upload(unit);
    // The memory belongs to the computation's stream, which uses it.
    at::Tensor whole = at::empty({sum_of(shares)},
                                 at::TensorOptions().dtype(settings_.compute_dtype).device(settings_.device));
    uploads_->finish_beside(unit, [&](const at::Tensor& share) {
      gathered.pending.emplace(begin_all_gather(group_, share, shares, std::move(whole)));
    });
  }

  Group& group_;
  ParameterSettings settings_;
  std::vector<UnitShare> shares_;
  std::unique_ptr<UnitTensors> values_;
  std::unique_ptr<UnitUploads>
      uploads_;               // only for shares on the host of a GPU or on disk beside one, else null
  at::Tensor last_uploaded_;  // on the host; only for shares on disk
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
