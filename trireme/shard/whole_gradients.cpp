// Every rank accumulates whole gradients. They are summed over ranks when the step's backward is done, or in
// its last micro-batch beside the backward of other units (SumsFinish):
//
//   backward       unit 4      unit 3      unit 2      unit 1
//   sum                        unit 4      unit 3      unit 2
//   ZeRO 0: gather                         unit 4      unit 3
#include <optional>

#include "trireme/device/memory_account.h"
#include "trireme/memory/through_pinned.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/masters.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {
namespace {

class WholeGradients final : public GradientStore {
 public:
  WholeGradients(const std::vector<FlatUnit>& units, Group& group, bool shard,
                 const GradientSettings& settings)
      : group_(group),
        shard_(shard && group.size() > 1),
        settings_(settings),
        beside_(group.size() > 1 && settings.sums == SumsFinish::one_unit_later),
        shares_(owned_shares(units, group, shard_)) {
    const MemoryScope scope(MemoryCategory::gradients);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(settings.device);
    for (const FlatUnit& unit : units) gradients_.push_back(at::empty({unit.elements}, options));
    states_.assign(units.size(), SumState::undefined);
    summed_.assign(units.size(), false);
  }

  void begin_last_micro_batch() override { last_micro_batch_ = true; }
  OpenGradient open(int unit) override {
    TRIREME_ASSERT(!summed_.at(static_cast<size_t>(unit)), "unit ", unit, " is opened after its last close");
    return {gradients_.at(static_cast<size_t>(unit)),
            std::exchange(states_[static_cast<size_t>(unit)], SumState::begun)};
  }
  void close(int unit) override {
    if (!beside_ || !last_micro_batch_) return;
    move_on();
    at::Tensor& gradient = gradients_.at(static_cast<size_t>(unit));
    summing_.emplace(unit, begin_sum_in_place(group_, gradient, settings_.reduce_dtype));
    summed_[static_cast<size_t>(unit)] = true;
  }
  void finish() override {
    move_on();  // the last unit's sum
    move_on();  // its gather
    for (size_t unit = 0; unit < gradients_.size(); ++unit) {
      if (summed_[unit]) continue;
      at::Tensor& gradient = gradients_[unit];
      if (std::exchange(states_[unit], SumState::begun) == SumState::undefined) gradient.zero_();
      sum_gradient(group_, gradient, shard_, settings_.reduce_dtype);
    }
  }
  at::Tensor summed(int unit) override {
    const at::Tensor sum = rank_share(unit);
    return settings_.pinned ? on_host(sum, settings_.pinned.get()) : sum;
  }
  at::Tensor squares(int unit) override { return sum_of_squares(rank_share(unit)); }
  at::Tensor whole(int unit) override {
    return gather_shares(group_, rank_share(unit), shard_, settings_.device);
  }
  bool sharded() const override { return shard_; }
  void multiply(double factor) override {
    for (at::Tensor& gradient : gradients_) gradient.mul_(factor);
  }
  void clear() override {
    summing_.reset();  // left by a step that ended early, as is a gather
    gathering_.reset();
    last_micro_batch_ = false;
    states_.assign(gradients_.size(), SumState::undefined);
    summed_.assign(gradients_.size(), false);
  }

 private:
  // This rank's share, which holds the sum after finish. The other shares are then unused.
  at::Tensor rank_share(int unit) const {
    const UnitShare& share = shares_.at(static_cast<size_t>(unit));
    return gradients_.at(static_cast<size_t>(unit)).narrow(0, share.begin, share.elements);
  }
  // One unit later: finishes a gather, then a sum, whose gather begins where every rank keeps the whole.
  void move_on() {
    const MemoryScope scope(MemoryCategory::communication);
    if (gathering_) gathering_->wait();
    gathering_.reset();
    if (!summing_) return;
    const int unit = summing_->unit;
    const at::Tensor share = summing_->sum.wait();
    summing_.reset();
    if (shard_) return;
    gathering_.emplace(begin_all_gather(group_, share, equal_shares(share.size(0), group_.size()),
                                        gradients_.at(static_cast<size_t>(unit))));
  }

  Group& group_;
  bool shard_;
  GradientSettings settings_;
  bool beside_;  // backward, in the last micro-batch
  std::vector<UnitShare> shares_;
  std::vector<at::Tensor> gradients_;
  bool last_micro_batch_ = false;
  std::optional<UnitSum> summing_;        // of the unit closed last
  std::optional<PendingRows> gathering_;  // of the unit closed before
  std::vector<SumState> states_;          // of this step
  std::vector<bool> summed_;              // beside its backward
};

}  // namespace

std::unique_ptr<GradientStore> make_whole_gradients(const std::vector<FlatUnit>& units, Group& group,
                                                    bool shard, const GradientSettings& settings) {
  return std::make_unique<WholeGradients>(units, group, shard, settings);
}

}  // namespace trireme
