// A unit's whole gradient exists only while the unit is open. Its close sums it over ranks, or begins to and
// the next close finishes (SumsFinish). This rank's share is then kept, on the device or on the host of a
// GPU, or handed over and dropped.
#include <optional>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/device/tensor_memory.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/masters.h"
#include "trireme/shard/offloaded_sums.h"

namespace trireme {
namespace {

class GradientsSummedAtClose final : public GradientStore {
 public:
  GradientsSummedAtClose(const std::vector<FlatUnit>& units, Group& group, bool shard,
                         const GradientSettings& settings, OnSummed on_summed)
      : group_(group),
        shard_(shard && group.size() > 1),
        beside_(shard_ && !on_summed && settings.sums == SumsFinish::one_unit_later),
        settings_(settings),
        on_summed_(std::move(on_summed)),
        open_(units.size()),
        sums_(units.size()) {
    for (const FlatUnit& unit : units) unit_elements_.push_back(unit.elements);
    states_.assign(units.size(), SumState::undefined);
    if (on_summed_) return;
    std::vector<int64_t> elements;
    for (const UnitShare& share : owned_shares(units, group, shard_)) elements.push_back(share.elements);
    if (settings.copies) {
      offloaded_.emplace(elements, settings.device, settings.copies, *settings.pinned);
      squares_.resize(units.size());
      return;
    }
    const MemoryScope scope(MemoryCategory::gradients);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(settings.device);
    for (size_t unit = 0; unit < units.size(); ++unit) sums_[unit] = at::empty({elements[unit]}, options);
  }

  void begin_last_micro_batch() override {}
  OpenGradient open(int unit) override {
    // Backward goes down the units: one above begins another micro-batch.
    if (summing_ && unit >= summing_->unit) finish_sum();
    at::Tensor& gradient = open_.at(static_cast<size_t>(unit));
    const MemoryScope scope(MemoryCategory::gradients);
    if (offloaded_) offloaded_->expect(unit);
    const SumState state = gradient.defined() ? SumState::begun : SumState::undefined;
    if (state == SumState::undefined)
      gradient = at::empty({unit_elements_[static_cast<size_t>(unit)]},
                           at::TensorOptions().dtype(at::kFloat).device(settings_.device));
    return {gradient, state};
  }
  void close(int unit) override {
    at::Tensor gradient = std::exchange(open_.at(static_cast<size_t>(unit)), at::Tensor());
    TRIREME_ASSERT(gradient.defined(), "unit ", unit, " is not open");
    if (beside_) {
      finish_sum();
      summing_.emplace(unit, begin_sum_of_share(group_, gradient, settings_.reduce_dtype));
      return;
    }
    if (shard_) {
      // In memory of its own: a view would keep the whole gradient's.
      const MemoryScope scope(MemoryCategory::communication);
      gradient = begin_sum_of_share(group_, gradient, settings_.reduce_dtype).wait();
    } else {
      sum_gradient(group_, gradient, /*shard=*/false, settings_.reduce_dtype);
    }
    take(unit, std::move(gradient));
  }
  void finish() override {
    if (on_summed_) return;
    finish_sum();
    if (offloaded_) offloaded_->finish();
    for (size_t unit = 0; unit < sums_.size(); ++unit) {
      if (std::exchange(states_[unit], SumState::begun) == SumState::begun) continue;
      if (offloaded_)
        squares_[unit] = at::Tensor();
      else
        sums_[unit].zero_();
    }
  }
  at::Tensor summed(int unit) override {
    if (offloaded_) return offloaded_->on_host(unit);
    const at::Tensor& sum = sums_.at(static_cast<size_t>(unit));
    TRIREME_ASSERT(sum.defined(), "gradients are not kept with update_in_backward");
    return sum;
  }
  at::Tensor squares(int unit) override {
    const bool known = offloaded_ && squares_.at(static_cast<size_t>(unit)).defined();
    return known ? squares_[static_cast<size_t>(unit)] : sum_of_squares(summed(unit)).to(settings_.device);
  }
  at::Tensor whole(int unit) override {
    return gather_shares(group_, summed(unit), shard_, settings_.device);
  }
  bool sharded() const override { return shard_; }
  void multiply(double factor) override {
    for (size_t unit = 0; unit < sums_.size() && !on_summed_; ++unit) {
      summed(static_cast<int>(unit)).mul_(factor);
      if (offloaded_) squares_[unit] = at::Tensor();
    }
  }
  void clear() override {
    summing_.reset();  // left by a step that ended early
    if (offloaded_) offloaded_->clear();
    for (at::Tensor& open : open_) open = at::Tensor();  // left by a step that ended early
    states_.assign(sums_.size(), SumState::undefined);
  }

 private:
  // Of the unit closed last, if it is not finished.
  void finish_sum() {
    if (!summing_) return;
    at::Tensor sum = [&] {
      const MemoryScope scope(MemoryCategory::communication);
      return summing_->sum.wait();
    }();
    const int unit = summing_->unit;
    summing_.reset();
    take(unit, std::move(sum));
  }
  // Keeps the sum of a unit, or hands it over.
  void take(int unit, at::Tensor sum) {
    const auto i = static_cast<size_t>(unit);
    if (!on_summed_ && !offloaded_) {
      if (std::exchange(states_[i], SumState::begun) == SumState::begun)
        sums_[i].add_(sum);
      else
        sums_[i].copy_(sum);
      return;
    }
    count_as(sum, MemoryCategory::gradients);  // it may be counted as communication
    if (on_summed_) {
      on_summed_(unit, std::move(sum));
    } else {
      send_away(unit, sum);
    }
  }
  // Adds the sum of earlier micro-batches on the device, takes its squares there, and sends it to the host.
  void send_away(int unit, at::Tensor& sum) {
    const at::Tensor earlier = offloaded_->earlier(unit);
    if (earlier.defined()) sum.add_(earlier);
    squares_[static_cast<size_t>(unit)] = sum_of_squares(sum);
    states_[static_cast<size_t>(unit)] = SumState::begun;
    offloaded_->put(unit, sum);
  }

  Group& group_;
  bool shard_;
  bool beside_;
  GradientSettings settings_;
  OnSummed on_summed_;
  std::vector<int64_t> unit_elements_;
  std::vector<at::Tensor> open_;
  std::optional<UnitSum> summing_;
  std::vector<at::Tensor> sums_;            // undefined: offloaded, or handed over
  std::optional<OffloadedSums> offloaded_;  // beside a GPU
  std::vector<at::Tensor> squares_;  // of offloaded sums, [] on the device; undefined: compute on the host
  std::vector<SumState> states_;     // of the sums, in this step
};

}  // namespace

std::unique_ptr<GradientStore> make_gradients_summed_at_close(const std::vector<FlatUnit>& units,
                                                              Group& group, bool shard,
                                                              const GradientSettings& settings,
                                                              OnSummed on_summed) {
  return std::make_unique<GradientsSummedAtClose>(units, group, shard, settings, std::move(on_summed));
}

}  // namespace trireme
