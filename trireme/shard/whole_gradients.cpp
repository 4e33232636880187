// Every rank accumulates whole gradients. They are summed over ranks when the step's backward is done.
#include "trireme/device/memory_account.h"
#include "trireme/memory/through_pinned.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/masters.h"

namespace trireme {
namespace {

class WholeGradients final : public GradientStore {
 public:
  WholeGradients(const std::vector<FlatUnit>& units, Group& group, bool shard,
                 const GradientSettings& settings)
      : group_(group),
        shard_(shard && group.size() > 1),
        settings_(settings),
        shares_(owned_shares(units, group, shard_)) {
    const MemoryScope scope(MemoryCategory::gradients);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(settings.device);
    for (const FlatUnit& unit : units) gradients_.push_back(at::empty({unit.elements}, options));
    states_.assign(units.size(), SumState::undefined);
  }

  OpenGradient open(int unit) override {
    return {gradients_.at(static_cast<size_t>(unit)),
            std::exchange(states_[static_cast<size_t>(unit)], SumState::begun)};
  }
  void close(int) override {}
  void finish() override {
    for (size_t unit = 0; unit < gradients_.size(); ++unit) {
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
  void clear() override { states_.assign(gradients_.size(), SumState::undefined); }

 private:
  // This rank's share, which holds the sum after finish. The other shares are then unused.
  at::Tensor rank_share(int unit) const {
    const UnitShare& share = shares_.at(static_cast<size_t>(unit));
    return gradients_.at(static_cast<size_t>(unit)).narrow(0, share.begin, share.elements);
  }

  Group& group_;
  bool shard_;
  GradientSettings settings_;
  std::vector<UnitShare> shares_;
  std::vector<at::Tensor> gradients_;
  std::vector<SumState> states_;  // of this step
};

}  // namespace

std::unique_ptr<GradientStore> make_whole_gradients(const std::vector<FlatUnit>& units, Group& group,
                                                    bool shard, const GradientSettings& settings) {
  return std::make_unique<WholeGradients>(units, group, shard, settings);
}

}  // namespace trireme
