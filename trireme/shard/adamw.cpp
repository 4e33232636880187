// AdamW: Adam with decoupled weight decay (arXiv 1711.05101). Spans that do not decay (norms, biases) are
// stepped with a decay of 0. Moments are fp32, or bf16 with stochastic rounding (arXiv 1502.02551). CUDA has
// a kernel of ours, which also applies the gradient's factor; elsewhere libtorch's steps fp32.
#include <algorithm>

#include "trireme/shard/adamw_device.h"
#include "trireme/shard/optimizer.h"
#include "trireme/shard/optimizer_bytes.h"
#include "trireme/shard/stochastic_rounding.h"

namespace trireme {
namespace {

// Spans of a share that touch and decay alike, as one.
std::vector<FlatSpan> runs_of_one_decay(const FlatUnit& share) {
  std::vector<FlatSpan> runs;
  for (const FlatSpan& span : share.spans) {
    const bool goes_on = !runs.empty() && runs.back().decays == span.decays &&
                         runs.back().offset + runs.back().elements == span.offset;
    if (goes_on)
      runs.back().elements += span.elements;
    else
      runs.push_back({span.offset, span.elements, span.decays});
  }
  return runs;
}

class Adamw final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void step_share(int unit, const FlatUnit& share, StepTensors& tensors,
                  const StepNumbers& numbers) const override {
    const auto& [master, gradient, values, states] = tensors;
    const at::Tensor &mean = states[0], &square = states[1];
    if (has_adamw_kernel(master.device())) {
      const bool writes_values = values.defined() && values.scalar_type() == at::kBFloat16;
      const StepTensors of_kernel{master, gradient, writes_values ? values : at::Tensor(), states};
      for (const FlatSpan& run : runs_of_one_decay(share))
        if (settings_.state_dtype == at::kFloat)
          step_run<float>(unit, share, run, of_kernel, numbers);
        else
          step_run<Bf16>(unit, share, run, of_kernel, numbers);
      if (writes_values) tensors.values = at::Tensor();
      return;
    }
    if (numbers.gradient_factor != 1) gradient.mul_(numbers.gradient_factor);
    for (const bool decays : {true, false}) {
      const double decay = decays ? settings_.weight_decay : 0;
      if (settings_.state_dtype == at::kFloat) {
        update(slices(master, share, decays), slices(gradient, share, decays), slices(mean, share, decays),
               slices(square, share, decays), decay, numbers);
        continue;
      }
      for (const FlatSpan& span : share.spans)
        if (span.decays == decays)
          for (int64_t done = 0; done < span.elements; done += kNarrowPiece_elements)
            update_narrow(unit, share, span.offset + done,
                          std::min(kNarrowPiece_elements, span.elements - done), master, gradient, mean,
                          square, decay, numbers);
    }
  }

 private:
  void update(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
              const std::vector<at::Tensor>& means, const std::vector<at::Tensor>& squares, double decay,
              const StepNumbers& numbers) const {
    if (parameters.empty()) return;
    // The kernel reads the number of the step from a tensor a parameter.
    const std::vector<at::Tensor> counts(
        parameters.size(), at::full({}, static_cast<double>(numbers.steps), parameters[0].options()));
    at::_fused_adamw_(parameters, gradients, means, squares, {}, counts, numbers.learning_rate,
                      settings_.beta1, settings_.beta2, decay, settings_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
  }

  // The bits of the rounding depend on the step, the unit, the moment and the element in the unit: shards
  // round as the whole does.
  static uint64_t stream_of(int unit, const StepNumbers& numbers) {
    return (static_cast<uint64_t>(numbers.steps) << 24) + 2 * static_cast<uint64_t>(unit);
  }

  template <typename Moment>
  void step_run(int unit, const FlatUnit& share, const FlatSpan& run, const StepTensors& tensors,
                const StepNumbers& numbers) const {
    const auto moment = [&](size_t state) {
      return static_cast<Moment*>(tensors.states[state].mutable_data_ptr()) + run.offset;
    };
    const at::Tensor& values = tensors.values;
    const uint64_t stream = stream_of(unit, numbers);
    const AdamwSpan<Moment> span{
        tensors.master.mutable_data_ptr<float>() + run.offset,
        tensors.gradient.const_data_ptr<float>() + run.offset,
        moment(0),
        moment(1),
        values.defined() ? static_cast<Bf16*>(values.mutable_data_ptr()) + run.offset : nullptr,
        run.elements,
        rounding_key(settings_.seed, stream),
        rounding_key(settings_.seed, stream + 1),
        static_cast<uint64_t>(share.begin + run.offset)};
    step_adamw(span,
               adamw_step(settings_.beta1, settings_.beta2, settings_.epsilon,
                          run.decays ? settings_.weight_decay : 0, numbers.learning_rate,
                          numbers.gradient_factor, numbers.steps),
               tensors.master.device());
  }

  void update_narrow(int unit, const FlatUnit& share, int64_t begin, int64_t count, const at::Tensor& master,
                     const at::Tensor& gradient, const at::Tensor& mean, const at::Tensor& square,
                     double decay, const StepNumbers& numbers) const {
    at::Tensor mean16 = mean.narrow(0, begin, count), square16 = square.narrow(0, begin, count);
    const at::Tensor wide_mean = mean16.to(at::kFloat), wide_square = square16.to(at::kFloat);
    update({master.narrow(0, begin, count)}, {gradient.narrow(0, begin, count)}, {wide_mean}, {wide_square},
           decay, numbers);
    const uint64_t stream = stream_of(unit, numbers);
    round_stochastically(wide_mean, mean16, settings_.seed, stream, share.begin + begin);
    round_stochastically(wide_square, square16, settings_.seed, stream + 1, share.begin + begin);
  }
};

}  // namespace

const OptimizerKind& adamw_optimizer() {
  static const OptimizerKind kind{.name = "adamw_torch",
                                  .state_names = {"exp_avg", "exp_avg_sq"},
                                  .bf16_states = true,
                                  .make = make_optimizer<Adamw>};
  return kind;
}

}  // namespace trireme
