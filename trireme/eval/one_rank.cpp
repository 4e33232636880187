#include "trireme/eval/one_rank.h"

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "trireme/comm/agreement.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/tensor_extremes.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

// What a step makes in fp32, without an update.
EngineOptions for_gradients(const EngineOptions& asked) {
  EngineOptions options = asked;
  options.precision = Precision::fp32;
  // A GPU's kernel that was asked for by name takes 16 bits alone.
  if (!options.device.is_cpu() && options.attention != AttentionKernel::reference)
    options.attention = AttentionKernel::automatic;
  options.update_in_backward = false;
  options.optimizer.kind = &find_optimizer("sgd");  // no states, which are not compared
  options.optimizer.state_dtype = at::kFloat;
  options.reduce_dtype = at::kFloat;
  options.offload.optimizer = Offload::none;
  if (!uses_disk(options.offload)) {
    options.offload.folder.clear();
    options.offload.limit_bytes = 0;
  }
  return options;
}

EngineOptions for_one_rank(EngineOptions options) {
  options.ulysses = options.ring = options.head_chunks = 1;
  options.ring_method = RingMethod::ring;
  options.zero = ZeroStage::none;
  options.offload = {};
  options.recompute = Recompute::full;
  options.checkpoint_every = 1;
  options.keep_fraction = 1;
  options.keep_qkv_fraction = options.keep_mlp_fraction = 0;
  options.memory_budget_bytes = 0;
  options.strict_divisible = false;
  return options;
}

Extremes of_numbers(double ours, double reference) {
  Extremes extremes;
  extremes.add(at::full({1}, ours, at::kDouble), at::full({1}, reference, at::kDouble));
  return extremes;
}

}  // namespace

VerifyResult compare_with_one_rank(World& world, const std::filesystem::path& model_dir,
                                   const EngineOptions& asked, const PartOfStep& part_of_step,
                                   double tolerance, const ModelFamilies& families) {
  const at::NoGradGuard no_grad;
  const EngineOptions options = for_gradients(asked);
  const auto group = world.make_group("one rank", {world.identity().all_ranks()});
  Agreement agreement(*group, options.device);
  VerifyResult result;
  result.tolerance = tolerance;
  result.ranks = world.size();

  StepResult of_all;
  std::vector<at::Tensor> gradients;  // of each unit, on rank 0
  int dp_size = 1;
  {
    const auto engine = assemble(world, model_dir, options, families);
    Mesh& mesh = engine->mesh();
    dp_size = mesh.dp_size;
    const StepBatches batches = part_of_step({mesh.dp_index, options.ulysses, options.ring, mesh.sp->rank()});
    of_all = engine->accumulate_gradients(batches);
    for (size_t unit = 0; unit < engine->layout().units.size(); ++unit) {
      const at::Tensor gradient = engine->unit_gradient(static_cast<int>(unit));
      if (world.rank() == 0) gradients.push_back(gradient.to(at::kCPU, at::kFloat, false, /*copy=*/true));
    }
    result.description = engine->description();
    result.batch = static_cast<int64_t>(batches.size()) * batches.front().tokens.size(0) * dp_size;
    result.sequence_tokens = batches.front().layout.tokens;
  }
  result.loss = of_all.loss;

  std::vector<std::string> names{"loss", "gradient norm"};
  std::vector<double> numbers;  // the largest difference and the largest entry of each
  const auto compare = [&](World& alone) {
    const c10::DeviceGuard guard(options.device);
    const auto engine = assemble(alone, model_dir, for_one_rank(options), families);
    StepBatches batches;
    for (int dp_index = 0; dp_index < dp_size; ++dp_index)
      for (TokenBatch& batch : part_of_step({.dp_index = dp_index})) batches.push_back(std::move(batch));
    const StepResult of_one = engine->accumulate_gradients(batches);
    std::vector<Extremes> extremes{of_numbers(of_all.loss, of_one.loss),
                                   of_numbers(of_all.gradient_norm, of_one.gradient_norm)};
    for (size_t unit = 0; unit < engine->layout().units.size(); ++unit) {
      const at::Tensor reference = engine->unit_gradient(static_cast<int>(unit)).to(at::kCPU, at::kFloat);
      const std::vector<ParameterSpec>& parameters = engine->layout().units[unit].parameters;
      const size_t first = extremes.size();
      for (const ParameterSpec& spec : parameters) {
        names.push_back("grad." + spec.name);
        extremes.emplace_back();
        extremes.back().add(parameter_view(gradients[unit], spec), parameter_view(reference, spec));
      }
      compare_vanishing_with_unit(parameters, &extremes[first]);
    }
    for (const Extremes& of_tensor : extremes)
      numbers.insert(numbers.end(), {of_tensor.difference, of_tensor.largest});
    result.reference_loss = of_one.loss;
  };
  agreement.all_or_none("computing the same step on one rank", [&] {
    if (world.rank() == 0) run_ranks_as_threads(1, compare, world.timeout());
  });

  // Rank 0's, everywhere: what the others pass is less.
  const auto layout = make_model_layout(read_model_config(model_dir, families));
  if (world.rank() != 0)
    for (const UnitSpec& unit : layout.units)
      for (const ParameterSpec& spec : unit.parameters) names.push_back("grad." + spec.name);
  numbers.resize(2 * names.size(), 0);
  numbers.push_back(result.reference_loss);
  numbers = agreement.largest(numbers);
  result.reference_loss = numbers.back();
  for (size_t i = 0; i < names.size(); ++i) {
    const Extremes of_tensor{numbers[2 * i], numbers[2 * i + 1]};
    result.tensors.push_back({names[i], of_tensor.error(), of_tensor.largest});
  }
  std::ranges::stable_sort(result.tensors,
                           [](const TensorError& a, const TensorError& b) { return a.error > b.error; });
  return result;
}

}  // namespace trireme
