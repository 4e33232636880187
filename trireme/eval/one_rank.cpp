#include "trireme/eval/one_rank.h"

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
  if (!uses_disk(options.offload)) leave_out_disk(options.offload);
  return options;
}

EngineOptions for_one_rank(EngineOptions options) {
  options.ulysses = options.ring = options.head_chunks = 1;
  options.ring_method = RingMethod::ring;
  options.zero = ZeroStage::none;
  options.offload = {};
  options.recompute = {.policy = Recompute::full};
  options.memory_budget_bytes = 0;
  options.strict_divisible = false;
  return options;
}

// Of the step that all ranks make together.
struct StepOfAll {
  StepResult step;
  std::vector<at::Tensor> gradients;  // of each unit, on rank 0
  std::vector<std::string> names;     // of the parameters
  int dp_size = 1;
};

// Fills in what `result` says of the run. Collective.
StepOfAll step_of_all(World& world, const std::filesystem::path& model_dir, const EngineOptions& options,
                      const PartOfStep& part_of_step, const ModelFamilies& families, VerifyResult& result) {
  StepOfAll all;
  const auto engine = assemble(world, model_dir, options, families);
  Mesh& mesh = engine->mesh();
  all.dp_size = mesh.dp_size;
  const StepBatches batches = part_of_step({mesh.dp_index, options.ulysses, options.ring, mesh.sp->rank()});
  all.step = engine->accumulate_gradients(batches);
  for (size_t unit = 0; unit < engine->layout().trained().size(); ++unit) {
    const at::Tensor gradient = engine->unit_gradient(static_cast<int>(unit));
    if (world.rank() == 0) all.gradients.push_back(gradient.to(at::kCPU, at::kFloat, false, /*copy=*/true));
    for (const ParameterSpec& spec : engine->layout().trained()[unit].parameters)
      all.names.push_back(spec.name);
  }
  result.description = engine->description();
  result.batch = static_cast<int64_t>(batches.size()) * batches.front().tokens.size(0) * all.dp_size;
  result.sequence_tokens = batches.front().layout.tokens;
  result.ranks = world.size();
  result.loss = all.step.loss;
  return all;
}

// The loss of all parts on one rank, beside which `all` is compared. `compared` has loss and gradient norm;
// gradients are added.
double compare_alone(World& alone, const std::filesystem::path& model_dir, const EngineOptions& options,
                     const PartOfStep& part_of_step, const ModelFamilies& families, const StepOfAll& all,
                     std::vector<ComparedTensor>& compared) {
  const c10::DeviceGuard guard(options.device);
  const auto engine = assemble(alone, model_dir, for_one_rank(options), families);
  StepBatches batches;
  for (int dp_index = 0; dp_index < all.dp_size; ++dp_index)
    for (TokenBatch& batch : part_of_step({.dp_index = dp_index})) batches.push_back(std::move(batch));
  const StepResult one = engine->accumulate_gradients(batches);
  compared[0].extremes.add(all.step.loss, one.loss);
  compared[1].extremes.add(all.step.gradient_norm, one.gradient_norm);
  for (size_t unit = 0; unit < engine->layout().trained().size(); ++unit) {
    const at::Tensor reference = engine->unit_gradient(static_cast<int>(unit)).to(at::kCPU, at::kFloat);
    compare_gradients(
        engine->layout().trained()[unit], all.gradients[unit],
        [&](const ParameterSpec& spec) { return parameter_view(reference, spec); }, compared);
  }
  return one.loss;
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
  const StepOfAll all = step_of_all(world, model_dir, options, part_of_step, families, result);

  std::vector<ComparedTensor> compared{{"loss"}, {"gradient norm"}};
  if (world.rank() != 0)  // no differences, which are less than rank 0's
    for (const std::string& name : all.names) compared.push_back({"grad." + name});
  agreement.while_rank_0_works("computing the same step on one rank", [&] {
    const auto compare = [&](World& alone) {
      result.reference_loss = compare_alone(alone, model_dir, options, part_of_step, families, all, compared);
    };
    run_ranks_as_threads(1, compare, world.timeout());
  });
  result.reference_loss = agreement.largest(std::vector{result.reference_loss}).front();
  result.tensors = errors_over_ranks(compared, agreement);
  return result;
}

}  // namespace trireme
