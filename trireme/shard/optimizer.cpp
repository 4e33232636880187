#include "trireme/shard/optimizer.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/narrow_adamw_device.h"
#include "trireme/shard/optimizer_bytes.h"
#include "trireme/shard/stochastic_rounding.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {
namespace {

constexpr const char* kMean = "exp_avg";
constexpr const char* kSquare = "exp_avg_sq";

std::vector<FlatUnit> cut_units(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares) {
  std::vector<FlatUnit> cut;
  cut.reserve(units.size());
  for (size_t unit = 0; unit < units.size(); ++unit) cut.push_back(cut_unit(units[unit], shares[unit]));
  return cut;
}

std::vector<at::Tensor> views(const at::Tensor& flat, const FlatUnit& unit, bool decays) {
  std::vector<at::Tensor> result;
  for (const FlatSpan& span : unit.spans)
    if (span.decays == decays && span.elements > 0)
      result.push_back(flat.narrow(0, span.offset, span.elements));
  return result;
}

class Adamw final : public Optimizer {
 public:
  Adamw(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares,
        const AdamwSettings& settings)
      : units_(cut_units(units, shares)), shares_(shares), settings_(settings) {
    std::vector<int64_t> elements;
    elements.reserve(shares.size());
    for (const UnitShare& share : shares) elements.push_back(share.elements);
    const MemoryScope scope(MemoryCategory::optimizer);
    for (auto* moment : {&mean_, &square_})
      *moment =
          make_unit_tensors(elements, settings.state_dtype, settings.device, settings.place, settings.spill);
  }

  void prefetch(int unit) override {
    mean_->prefetch(unit);
    square_->prefetch(unit);
  }

  void step(int unit, at::Tensor& master, at::Tensor& gradient, double learning_rate, double gradient_factor,
            int64_t steps) override {
    const FlatUnit& flat = units_.at(static_cast<size_t>(unit));
    if (flat.elements == 0) return;
    const MemoryScope scope(MemoryCategory::optimizer);
    const at::Tensor mean = mean_->open(unit), square = square_->open(unit);
    if (settings_.state_dtype == at::kBFloat16 && has_narrow_adamw(master.device())) {
      for (const FlatSpan& span : flat.spans)
        step_narrow(unit, span, master, gradient, mean, square, learning_rate, gradient_factor, steps);
      mean_->close(unit, true);
      square_->close(unit, true);
      return;
    }
    if (gradient_factor != 1) gradient.mul_(gradient_factor);
    for (const bool decays : {true, false}) {
      const double decay = decays ? settings_.weight_decay : 0;
      if (settings_.state_dtype == at::kFloat) {
        update(views(master, flat, decays), views(gradient, flat, decays), views(mean, flat, decays),
               views(square, flat, decays), learning_rate, decay, steps);
        continue;
      }
      for (const FlatSpan& span : flat.spans)
        if (span.decays == decays)
          for (int64_t at = 0; at < span.elements; at += kNarrowPiece_elements)
            update_narrow(unit, span.offset + at, std::min(kNarrowPiece_elements, span.elements - at), master,
                          gradient, mean, square, learning_rate, decay, steps);
    }
    mean_->close(unit, true);
    square_->close(unit, true);
  }

  std::vector<std::string> state_names() const override { return {kMean, kSquare}; }
  at::Tensor state(int unit, const std::string& name) override {
    UnitTensors& moment = this->moment(name);
    at::Tensor values = moment.open(unit);
    // What lies on disk may not be read after its close.
    values = values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/settings_.place == Offload::disk);
    moment.close(unit, false);
    return values;
  }
  void set_state(int unit, const std::string& name, const at::Tensor& share) override {
    UnitTensors& moment = this->moment(name);
    moment.open(unit).copy_(share);
    moment.close(unit, true);
  }

 private:
  UnitTensors& moment(const std::string& name) {
    TRIREME_ASSERT(name == kMean || name == kSquare, "AdamW has no state '", name, "'");
    return name == kMean ? *mean_ : *square_;
  }

  void update(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
              const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& squares,
              double learning_rate, double decay, int64_t steps) const {
    if (parameters.empty()) return;
    // The kernel reads the number of the step from a tensor a parameter.
    const std::vector<at::Tensor> counts(parameters.size(),
                                         at::full({}, static_cast<double>(steps), parameters[0].options()));
    at::_fused_adamw_(parameters, gradients, means, squares, {}, counts, learning_rate, settings_.beta1,
                      settings_.beta2, decay, settings_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }

  // The bits of the rounding depend on the step, the unit, the moment and the element in the unit: shards round as the
  // whole does.
  static uint64_t stream_of(int unit, int64_t steps) {
    return (static_cast<uint64_t>(steps) << 24) + 2 * static_cast<uint64_t>(unit);
  }
  int64_t first_element(int unit, int64_t begin) const {
    return shares_[static_cast<size_t>(unit)].begin + begin;
  }

  void step_narrow(int unit, const FlatSpan& span, at::Tensor& master, const at::Tensor& gradient,
                   const at::Tensor& mean, const at::Tensor& square, double learning_rate,
                   double gradient_factor, int64_t steps) const {
    const auto bits = [&](const at::Tensor& moment) {
      return static_cast<uint16_t*>(moment.mutable_data_ptr()) + span.offset;
    };
    const uint64_t stream = stream_of(unit, steps);
    step_narrow_adamw(
        {master.mutable_data_ptr<float>() + span.offset, gradient.const_data_ptr<float>() + span.offset,
         bits(mean), bits(square), span.elements, rounding_key(settings_.seed, stream),
         rounding_key(settings_.seed, stream + 1), static_cast<uint64_t>(first_element(unit, span.offset))},
        narrow_adamw_step(settings_.beta1, settings_.beta2, settings_.epsilon,
                          span.decays ? settings_.weight_decay : 0, learning_rate, gradient_factor, steps),
        master.device());
  }

  void update_narrow(int unit, int64_t begin, int64_t count, const at::Tensor& master,
                     const at::Tensor& gradient, const at::Tensor& mean, const at::Tensor& square,
                     double learning_rate, double decay, int64_t steps) const {
    at::Tensor mean16 = mean.narrow(0, begin, count), square16 = square.narrow(0, begin, count);
    const at::Tensor wide_mean = mean16.to(at::kFloat), wide_square = square16.to(at::kFloat);
    update({master.narrow(0, begin, count)}, {gradient.narrow(0, begin, count)}, {wide_mean}, {wide_square},
           learning_rate, decay, steps);
    const int64_t first = first_element(unit, begin);
    const uint64_t stream = stream_of(unit, steps);
    round_stochastically(wide_mean, mean16, settings_.seed, stream, first);
    round_stochastically(wide_square, square16, settings_.seed, stream + 1, first);
  }

  std::vector<FlatUnit> units_;  // this rank's shares
  std::vector<UnitShare> shares_;
  AdamwSettings settings_;
  std::unique_ptr<UnitTensors> mean_, square_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares, double weight_decay)
      : units_(cut_units(units, shares)), weight_decay_(weight_decay) {}

  void step(int unit, at::Tensor& master, at::Tensor& gradient, double learning_rate, double gradient_factor,
            int64_t) override {
    if (weight_decay_ != 0)
      for (at::Tensor& part : views(master, units_[static_cast<size_t>(unit)], true))
        part.mul_(1 - learning_rate * weight_decay_);
    master.add_(gradient, -learning_rate * gradient_factor);
  }
  std::vector<std::string> state_names() const override { return {}; }
  at::Tensor state(int, const std::string& name) override {
    throw InternalError(cat("SGD has no state '", name, "'"));
  }
  void set_state(int, const std::string& name, const at::Tensor&) override {
    throw InternalError(cat("SGD has no state '", name, "'"));
  }

 private:
  std::vector<FlatUnit> units_;
  double weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const std::vector<FlatUnit>& units,
                                      const std::vector<UnitShare>& shares, const AdamwSettings& settings) {
  return std::make_unique<Adamw>(units, shares, settings);
}

std::unique_ptr<Optimizer> make_sgd(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares,
                                    double weight_decay) {
  return std::make_unique<Sgd>(units, shares, weight_decay);
}

}  // namespace trireme
