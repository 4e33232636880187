// Steps the fp32 masters of units: AdamW (decoupled weight decay, arXiv 1711.05101) or plain SGD. Works on
// flat buffers, whole or shards of them; spans that do not decay (norms, biases) are stepped with a decay of
// 0.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/shard/flat_unit.h"

namespace trireme {

struct AdamwSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // `steps` counts from 1. `gradient_factor` multiplies the gradient first (clipping).
  virtual void step(int unit, at::Tensor& master, at::Tensor& gradient, double learning_rate,
                    double gradient_factor, int64_t steps) = 0;
  // Named flat fp32 tensors of a unit that a checkpoint must hold ("exp_avg", "exp_avg_sq"; none for SGD).
  virtual std::vector<std::pair<std::string, at::Tensor>> state(int unit) = 0;
  virtual int64_t bytes() const = 0;
};

std::unique_ptr<Optimizer> make_adamw(std::vector<FlatUnit> units, const AdamwSettings& settings,
                                      double weight_decay, at::Device device);
std::unique_ptr<Optimizer> make_sgd(std::vector<FlatUnit> units, double weight_decay);

// sqrt of the sum of squares over the units, summed in fp64.
double gradient_norm(const std::vector<at::Tensor>& gradients);

}  // namespace trireme
