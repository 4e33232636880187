// Plain stochastic gradient descent with decoupled weight decay; it keeps no states.
#include "trireme/shard/optimizer.h"

namespace trireme {
namespace {

class Sgd final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void step_share(const FlatUnit& share, StepTensors& tensors, const StepNumbers& numbers) const override {
    if (settings_.weight_decay != 0)
      for (at::Tensor& slice : slices(tensors.master, share, /*decays=*/true))
        slice.mul_(1 - numbers.learning_rate * settings_.weight_decay);
    tensors.master.add_(tensors.gradient, -numbers.learning_rate * numbers.gradient_factor);
  }
};

}  // namespace

const OptimizerKind& sgd_optimizer() {
  static const OptimizerKind kind{.name = "sgd", .state_names = {}, .make = make_optimizer<Sgd>};
  return kind;
}

}  // namespace trireme
