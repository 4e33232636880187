// Steps the fp32 masters of units: AdamW (decoupled weight decay, arXiv 1711.05101) or plain SGD. Works on this
// rank's shares of flat buffers; spans that do not decay (norms, biases) are stepped with a decay of 0. Moments lie
// where the optimizer is offloaded to, in fp32, or in bf16 with stochastic rounding (arXiv 1502.02551).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/memory/offload.h"
#include "trireme/memory/spill_file.h"
#include "trireme/shard/flat_unit.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {

struct AdamwSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  at::ScalarType state_dtype = at::kFloat;  // fp32 or bf16
  uint64_t seed = 0;                        // of the stochastic rounding
  at::Device device = at::kCPU;
  Offload place = Offload::none;
  SpillFile* spill = nullptr;  // for Offload::disk
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer& operator=(Optimizer&&) = delete;
  // The unit will be stepped next.
  virtual void prefetch(int unit) { static_cast<void>(unit); }
  // `master` and `gradient` are this rank's share, fp32, on the device of the step. `steps` counts from 1.
  // `gradient_factor` multiplies the gradient first (clipping, loss scale); the gradient may be written over.
  virtual void step(int unit, at::Tensor& master, at::Tensor& gradient, double learning_rate,
                    double gradient_factor, int64_t steps) = 0;
  // What a checkpoint must hold beside the masters ("exp_avg", "exp_avg_sq"; none for SGD).
  virtual std::vector<std::string> state_names() const = 0;
  // fp32 copy, or the tensor itself, of one of them; this rank's share of the unit.
  virtual at::Tensor state(int unit, const std::string& name) = 0;
  virtual void set_state(int unit, const std::string& name, const at::Tensor& share) = 0;
};

// `shares[u]`: the part of unit u that this rank steps.
std::unique_ptr<Optimizer> make_adamw(const std::vector<FlatUnit>& units,
                                      const std::vector<UnitShare>& shares, const AdamwSettings& settings);
std::unique_ptr<Optimizer> make_sgd(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares,
                                    double weight_decay);

}  // namespace trireme
