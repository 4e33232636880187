// Steps the fp32 masters of units. An optimizer sees this rank's share of each unit as slices of parameters,
// with their names and shapes. What it keeps of every value from step to step, its states, lies where the
// optimizer is offloaded to.
//
// A new one is a file with an OptimizerKind, listed in optimizers.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/enum_names.h"
#include "trireme/memory/offload.h"
#include "trireme/memory/spill_file.h"
#include "trireme/shard/flat_unit.h"
#include "trireme/shard/unit_shares.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {

struct OptimizerSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  at::ScalarType state_dtype = at::kFloat;  // fp32 or bf16
  uint64_t seed = 0;                        // of the stochastic rounding
  at::Device device = at::kCPU;
  Offload offload = Offload::none;
  SpillFile* spill = nullptr;  // for Offload::disk
};

// What changes from step to step.
struct StepNumbers {
  double learning_rate = 0;
  double gradient_factor = 1;  // multiplies the gradient first (clipping, loss scale)
  int64_t steps = 1;           // with this one
};

// All are as long as the share; what lies between its slices is padding.
struct StepTensors {
  at::Tensor master, gradient;
  // Of what compute reads. An optimizer that rounds the masters into it makes it undefined.
  at::Tensor values;
  std::vector<at::Tensor> states;  // in the order of their names, in the settings' dtype; they begin at 0
};

class Optimizer;

struct OptimizerKind {
  std::string name;                      // as --optim takes it
  std::vector<std::string> state_names;  // what a checkpoint must hold beside the masters
  bool bf16_states = false;              // its states may be rounded to bf16
  // It steps whole parameters, not slices (products of a whole matrix): nothing may be sharded over ranks.
  bool whole_parameters = false;
  std::unique_ptr<Optimizer> (*make)(const OptimizerKind& kind, std::vector<FlatUnit> shares,
                                     const OptimizerSettings& settings) = nullptr;
};

const std::vector<const OptimizerKind*>& optimizers();
std::span<const EnumName<const OptimizerKind*>> optimizer_names();
// InternalError where there is none: --optim takes no other name than theirs.
const OptimizerKind& find_optimizer(const std::string& name);

class Optimizer {
 public:
  // `shares`: what this rank steps of each unit.
  Optimizer(const OptimizerKind& kind, std::vector<FlatUnit> shares, const OptimizerSettings& settings);
  virtual ~Optimizer() = default;
  Optimizer& operator=(Optimizer&&) = delete;

  // The unit will be stepped next.
  void prefetch(int unit);
  // `master` and `gradient` are this rank's share, fp32, on the device of the step. The gradient may be
  // written over. `values`, where it is defined, becomes the stepped masters, rounded to its dtype.
  void step(int unit, const at::Tensor& master, const at::Tensor& gradient, const StepNumbers& numbers,
            const at::Tensor& values = {});
  const std::vector<std::string>& state_names() const { return state_names_; }
  // fp32 copy, or the tensor itself, of one of them; this rank's share of the unit.
  at::Tensor state(int unit, const std::string& name);
  void set_state(int unit, const std::string& name, const at::Tensor& share);

 protected:
  // `numbers.gradient_factor` is to be applied here. The forecast counts no tensors that are made on the way:
  // keep them small.
  virtual void step_share(int unit, const FlatUnit& share, StepTensors& tensors,
                          const StepNumbers& numbers) const = 0;

  const OptimizerSettings settings_;

 private:
  UnitTensors& tensors_of(const std::string& name);

  std::vector<std::string> state_names_;
  std::vector<FlatUnit> shares_;
  std::vector<std::unique_ptr<UnitTensors>> states_;
};

// For OptimizerKind::make.
template <typename Kind>
std::unique_ptr<Optimizer> make_optimizer(const OptimizerKind& kind, std::vector<FlatUnit> shares,
                                          const OptimizerSettings& settings) {
  return std::make_unique<Kind>(kind, std::move(shares), settings);
}

// The share of each unit, whose slices keep their names.
std::vector<FlatUnit> cut_units(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares);

// The slices of a flat tensor that decay, or those that do not.
std::vector<at::Tensor> slices(const at::Tensor& flat, const FlatUnit& share, bool decays);

}  // namespace trireme
