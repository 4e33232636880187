#include "trireme/shard/optimizer.h"

#include <cmath>

namespace trireme {
namespace {

std::vector<at::Tensor> views(const at::Tensor& flat, const FlatUnit& unit, bool decays) {
  std::vector<at::Tensor> result;
  for (const FlatSpan& span : unit.spans)
    if (span.decays == decays && span.elements > 0)
      result.push_back(flat.narrow(0, span.offset, span.elements));
  return result;
}

class Adamw final : public Optimizer {
 public:
  Adamw(std::vector<FlatUnit> units, const AdamwSettings& settings, double weight_decay, at::Device device)
      : units_(std::move(units)), settings_(settings), weight_decay_(weight_decay) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    for (const FlatUnit& unit : units_) {
      mean_.push_back(at::zeros({unit.elements}, options));
      square_.push_back(at::zeros({unit.elements}, options));
    }
  }

  void step(int unit, at::Tensor& master, at::Tensor& gradient, double learning_rate, double gradient_factor,
            int64_t steps) override {
    const auto at = static_cast<size_t>(unit);
    if (gradient_factor != 1) gradient.mul_(gradient_factor);
    for (const bool decays : {true, false}) {
      const auto parameters = views(master, units_[at], decays);
      if (parameters.empty()) continue;
      // The kernel reads the number of the step from a tensor a parameter.
      const std::vector<at::Tensor> counts(parameters.size(),
                                           at::full({}, static_cast<double>(steps), master.options()));
      at::_fused_adamw_(parameters, views(gradient, units_[at], decays), views(mean_[at], units_[at], decays),
                        views(square_[at], units_[at], decays), {}, counts, learning_rate, settings_.beta1,
                        settings_.beta2, decays ? weight_decay_ : 0.0, settings_.epsilon, /*amsgrad=*/false,
                        /*maximize=*/false);
    }
  }

  std::vector<std::pair<std::string, at::Tensor>> state(int unit) override {
    const auto at = static_cast<size_t>(unit);
    return {{"exp_avg", mean_[at]}, {"exp_avg_sq", square_[at]}};
  }

  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const at::Tensor& mean : mean_) bytes += 2 * static_cast<int64_t>(mean.nbytes());
    return bytes;
  }

 private:
  std::vector<FlatUnit> units_;
  AdamwSettings settings_;
  double weight_decay_;
  std::vector<at::Tensor> mean_, square_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<FlatUnit> units, double weight_decay)
      : units_(std::move(units)), weight_decay_(weight_decay) {}

  void step(int unit, at::Tensor& master, at::Tensor& gradient, double learning_rate, double gradient_factor,
            int64_t) override {
    if (weight_decay_ != 0)
      for (at::Tensor& part : views(master, units_[static_cast<size_t>(unit)], true))
        part.mul_(1 - learning_rate * weight_decay_);
    master.add_(gradient, -learning_rate * gradient_factor);
  }
  std::vector<std::pair<std::string, at::Tensor>> state(int) override { return {}; }
  int64_t bytes() const override { return 0; }

 private:
  std::vector<FlatUnit> units_;
  double weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(std::vector<FlatUnit> units, const AdamwSettings& settings,
                                      double weight_decay, at::Device device) {
  return std::make_unique<Adamw>(std::move(units), settings, weight_decay, device);
}

std::unique_ptr<Optimizer> make_sgd(std::vector<FlatUnit> units, double weight_decay) {
  return std::make_unique<Sgd>(std::move(units), weight_decay);
}

double gradient_norm(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) {
    const double norm = at::linalg_vector_norm(gradient, 2).item<double>();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

}  // namespace trireme
