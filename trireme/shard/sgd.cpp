// Plain stochastic gradient descent with decoupled weight decay; it keeps no states.
#include "trireme/shard/optimizer.h"

namespace trireme {
namespace {

class Sgd final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void step_share(const FlatUnit& share, StepTensors& tensors, const StepNumbers& numbers) const override {
    for (const FlatSpan& span : share.spans)
      if (span.decays && settings_.weight_decay != 0)
        tensors.master.narrow(0, span.offset, span.elements)
            .mul_(1 - numbers.learning_rate * settings_.weight_decay);
    tensors.master.add_(tensors.gradient, -numbers.learning_rate * numbers.gradient_factor);
  }
};

}  // namespace

const OptimizerKind& sgd_optimizer() {
  static const OptimizerKind kind{.name = "sgd", .state_names = {}, .make = make_optimizer<Sgd>};
  return kind;
}

}  // namespace trireme
