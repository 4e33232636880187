// AdamW: Adam with decoupled weight decay (arXiv 1711.05101). Spans that do not decay (norms, biases) are
// stepped with a decay of 0. CPUs and CUDA have a kernel, which takes masters and moments as they are stored.
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/shard/adamw_device.h"
#include "trireme/shard/optimizer.h"
#include "trireme/shard/optimizer_bytes.h"

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

// Null where there is no tensor.
template <typename T>
T* data_from(const at::Tensor& tensor, int64_t element) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) + element : nullptr;
}

class Adamw final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 protected:
  void step_share(const FlatUnit& share, StepTensors& tensors, const StepNumbers& numbers) const override {
    for (const FlatSpan& run : runs_of_one_decay(share))
      for (int64_t begin = 0; begin < run.elements; begin += kSteppedInAten_elements) {
        const int64_t count = std::min(kSteppedInAten_elements, run.elements - begin);
        step_in_aten(tensors, run.offset + begin, count, numbers_of(run, numbers));
      }
  }

  bool step_stored(int unit, const FlatUnit& share, const StoredShare& stored,
                   const StepNumbers& numbers) const override {
    const auto& [whole, low, values] = stored.master;
    const at::Device device = stored.gradient.device();
    if (!device.is_cpu() && !has_adamw_kernel(device)) return false;
    TRIREME_ASSERT(stored.gradient.scalar_type() == at::kFloat &&
                       (low.defined() ? low.device() == device && values.scalar_type() == at::kBFloat16
                                      : whole.device() == device && whole.scalar_type() == at::kFloat),
                   "masters and gradient of unit ", unit, " on ", device);
    for (const FlatSpan& run : runs_of_one_decay(share))
      if (settings_.state_dtype == at::kFloat)
        step_run<float>(unit, share, run, stored, numbers);
      else
        step_run<Bf16>(unit, share, run, stored, numbers);
    if (values.defined() && values.scalar_type() != at::kBFloat16) values.copy_(whole);
    return true;
  }

 private:
  // On a device without a kernel: elements [begin, begin + count).
  static void step_in_aten(const StepTensors& tensors, int64_t begin, int64_t count, const AdamwStep& step) {
    const auto of = [&](const at::Tensor& flat) { return flat.narrow(0, begin, count); };
    const at::Tensor master = of(tensors.master), mean = of(tensors.states[0]),
                     square = of(tensors.states[1]);
    const at::Tensor g = of(tensors.gradient).mul_(step.gradient_factor);
    mean.mul_(step.beta1).add_(g.mul(step.mean_share));
    square.mul_(step.beta2).add_(g.mul_(g).mul_(step.square_share));
    // ATen's root of fp32 is not always the nearest.
    const at::Tensor root = square.to(at::kDouble).sqrt_().to(at::kFloat);
    root.div_(step.correction).add_(step.epsilon);
    master.mul_(step.kept).sub_(mean.mul(step.step_size).div_(root));
  }

  AdamwStep numbers_of(const FlatSpan& run, const StepNumbers& numbers) const {
    return adamw_step(settings_.beta1, settings_.beta2, settings_.epsilon,
                      run.decays ? settings_.weight_decay : 0, numbers.learning_rate, numbers.gradient_factor,
                      numbers.steps);
  }
  template <typename Moment>
  void step_run(int unit, const FlatUnit& share, const FlatSpan& run, const StoredShare& stored,
                const StepNumbers& numbers) const {
    const auto& [whole, low, values] = stored.master;
    const bool rounds = values.defined() && values.scalar_type() == at::kBFloat16;
    const auto key = [&](size_t state) {
      return rounding_key(settings_.seed, rounding_stream(unit, state, numbers));
    };
    const AdamwSpan<Moment> span{data_from<float>(whole, run.offset),
                                 data_from<uint16_t>(low, run.offset),
                                 rounds ? data_from<Bf16>(values, run.offset) : nullptr,
                                 data_from<float>(stored.gradient, run.offset),
                                 data_from<Moment>(stored.states[0], run.offset),
                                 data_from<Moment>(stored.states[1], run.offset),
                                 run.elements,
                                 key(0),
                                 key(1),
                                 static_cast<uint64_t>(share.begin + run.offset)};
    const AdamwStep step = numbers_of(run, numbers);
    const at::Device device = stored.gradient.device();
    if (device.is_cpu())
      step_adamw_on_host(span, step);
    else
      step_adamw(span, step, device);
  }
};

}  // namespace

const OptimizerKind& adamw_optimizer() {
  static const OptimizerKind kind{.name = "adamw_torch",
                                  .other_names = {"adamw_torch_fused"},
                                  .state_names = {"exp_avg", "exp_avg_sq"},
                                  .bf16_states = true,
                                  .make = make_optimizer<Adamw>};
  return kind;
}

}  // namespace trireme
