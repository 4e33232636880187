// An optimizer that Trireme does not have, as one file (toy_family_test.cpp adds it): each value goes against
// the sign of its momentum (Signum, arXiv 1802.04434). It refuses to step what it does not know by name and
// shape.

#include "trireme/base/error.h"
#include "trireme/shard/optimizer.h"

namespace trireme {
namespace {

class Signum final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void step_share(const FlatUnit& share, StepTensors& tensors, const StepNumbers& numbers) const override {
    for (const FlatSpan& span : share.spans) {
      int64_t parameter_elements = 1;
      for (const int64_t extent : span.shape) parameter_elements *= extent;
      TRIREME_ASSERT(span.name.starts_with("toy.") && !span.shape.empty() &&
                         span.decays == (span.shape.size() == 2) &&
                         span.first + span.elements <= parameter_elements,
                     "a slice of '", span.name, "' from ", span.first, " on");
    }
    const at::Tensor& momentum = tensors.states[0];
    momentum.mul_(settings_.beta1).add_(tensors.gradient, (1 - settings_.beta1) * numbers.gradient_factor);
    tensors.master.sub_(momentum.sign(), numbers.learning_rate);
  }
};

}  // namespace

const OptimizerKind& toy_optimizer() {
  static const OptimizerKind kind{
      .name = "signum", .state_names = {"momentum"}, .make = make_optimizer<Signum>};
  return kind;
}

}  // namespace trireme
