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
#include "trireme/shard/master_share.h"
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

// fp32, as long as the share; what lies between its slices is padding.
struct StepTensors {
  at::Tensor master, gradient;
  std::vector<at::Tensor> states;  // in the order of their names; they begin at 0
};

class Optimizer;

struct OptimizerKind {
  std::string name;                           // as --optim takes it
  std::vector<std::string> other_names = {};  // of torch's other implementations of the same arithmetic
  std::vector<std::string> state_names;       // what a checkpoint must hold beside the masters
  bool bf16_states = false;                   // its states may be rounded to bf16
  // It steps whole parameters, not slices (products of a whole matrix): nothing may be sharded over ranks,
  // and where masters are split or states narrow, a step has fp32 copies of a whole unit.
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
  // `master` and `gradient` (fp32) are this rank's share, on the device of the step. The gradient may be
  // written over. The values that come with the masters are written as well.
  void step(int unit, const MasterShare& master, const at::Tensor& gradient, const StepNumbers& numbers);
  const std::vector<std::string>& state_names() const { return state_names_; }
  // fp32 copy, or the tensor itself, of one of them; this rank's share of the unit.
  at::Tensor state(int unit, const std::string& name);
  void set_state(int unit, const std::string& name, const at::Tensor& share);

 protected:
  // What lies in memory of one share: states in the settings' dtype.
  struct StoredShare {
    MasterShare master;
    at::Tensor gradient;
    std::vector<at::Tensor> states;
  };

  // `share`: this rank's of a unit, or a piece of it (the whole unit with `whole_parameters`).
  // `numbers.gradient_factor` is to be applied here. The forecast counts no tensors that are made on the way:
  // keep them small.
  virtual void step_share(const FlatUnit& share, StepTensors& tensors, const StepNumbers& numbers) const = 0;
  // A kernel that takes the share as it lies, and rounds with rounding_stream(); false: there is none here.
  virtual bool step_stored(int unit, const FlatUnit& share, const StoredShare& stored,
                           const StepNumbers& numbers) const {
    static_cast<void>(unit), static_cast<void>(share), static_cast<void>(stored), static_cast<void>(numbers);
    return false;
  }
  // Of the bits that round a state: they depend on the step, the unit, the state and the element in the unit.
  // Shards round as the whole does.
  uint64_t rounding_stream(int unit, size_t state, const StepNumbers& numbers) const {
    return (static_cast<uint64_t>(numbers.steps) << 24) + state_names_.size() * static_cast<uint64_t>(unit) +
           state;
  }

  const OptimizerSettings settings_;

 private:
  UnitTensors& tensors_of(const std::string& name);
  void step_in_pieces(int unit, const FlatUnit& share, const StoredShare& stored,
                      const StepNumbers& numbers) const;

  const bool whole_parameters_;
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

}  // namespace trireme
