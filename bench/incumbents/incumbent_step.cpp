#include "bench/incumbents/incumbent_step.h"

#include <algorithm>
#include <bit>

#include "bench/incumbents/incumbent_layer.h"

namespace trireme {
namespace {

constexpr std::string_view kCausalLoss = "loss_utils.py ForCausalLMLoss";
constexpr std::string_view kLigerLoss = "liger ops/fused_linear_cross_entropy.py";

// The loss and the gradient of the final norm's output, Liger's: in chunks, gradients in the forward already.
Held fused_loss(const IncumbentRun& run, IncumbentTrace& trace, IncumbentZero& zero, const LayerBytes& bytes,
                Held normed) {
  const ModelSizes& model = run.model;
  const int64_t quotient = (model.vocab + model.hidden - 1) / model.hidden;
  const auto chunk =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((bytes.tokens + quotient - 1) / quotient)));
  Held d_weight = trace.hold("gradient of the head, bf16", kLigerLoss, 2 * model.vocab * model.hidden);
  Held d_normed = trace.hold("gradient of the final norm's output", kLigerLoss, bytes.hidden);
  {
    const Held losses = trace.hold("losses, fp32", kLigerLoss, 4 * bytes.tokens);
    // The name logits_chunk keeps the last chunk until the next one is there.
    std::vector<Held> logits;
    for (int64_t number = 0; number < std::min<int64_t>(2, (bytes.tokens + chunk - 1) / chunk); ++number)
      logits.push_back(
          trace.hold("chunks of logits, bf16", kLigerLoss, 2 * std::min(chunk, bytes.tokens) * model.vocab));
    trace.hold("chunk of the gradient", kLigerLoss, 2 * std::min(chunk, bytes.tokens) * model.hidden);
  }
  normed.release();
  zero.add_gradient(std::move(d_weight), model.vocab * model.hidden);
  return d_normed;
}

// Whole logits, widened to fp32.
Held whole_loss(const IncumbentRun& run, IncumbentTrace& trace, IncumbentZero& zero, const LayerBytes& bytes,
                Held normed) {
  const int64_t values = bytes.tokens * run.model.vocab;
  Held logits = trace.hold("logits, bf16", "modeling_llama.py LlamaForCausalLM.forward", 2 * values);
  Held wide = trace.hold("logits, fp32", kCausalLoss, 4 * values);
  Held log_probabilities = trace.hold("log_softmax, fp32", "cross_entropy", 4 * values);
  wide.release();
  logits.release();
  trace.enter("the loss's backward");
  Held d_log = trace.hold("gradient of log_softmax, fp32", "nll_loss_backward", 4 * values);
  Held d_wide = trace.hold("gradient of logits, fp32", "log_softmax_backward", 4 * values);
  d_log.release();
  log_probabilities.release();
  Held d_logits = trace.hold("gradient of logits, bf16", "autograd of .float()", 2 * values);
  d_wide.release();
  Held d_normed = trace.hold("gradient of the final norm's output", "linear.py backward", bytes.hidden);
  const int64_t head = run.model.vocab * run.model.hidden;
  zero.add_gradient(trace.hold("gradient of the head, bf16", "linear.py backward", 2 * head), head);
  normed.release();
  return d_normed;
}

}  // namespace

int64_t incumbent_parameters(const ModelSizes& model) {
  const int64_t query = model.heads * model.head_dim, key = model.kv_heads * model.head_dim;
  const int64_t layer = 2 * model.hidden * (query + key) + 3 * model.hidden * model.intermediate +
                        2 * model.hidden + (model.qk_norm ? 2 * model.head_dim : 0);
  return model.layers * layer + (model.tied ? 1 : 2) * model.vocab * model.hidden + model.hidden;
}

void trace_incumbent_step(const IncumbentRun& run, IncumbentTrace& trace) {
  const IncumbentPolicy& policy = run.policy;
  const int64_t table = run.model.vocab * run.model.hidden;
  trace.enter("before the first layer");
  IncumbentZero zero(run, trace);
  IncumbentLayer layer(run, trace, zero);
  const LayerBytes& bytes = layer.bytes();
  const Held inputs = trace.hold("input_ids, position_ids, labels, shift_labels",
                                 "UlyssesSPDataLoaderAdapter", 4 * 8 * bytes.tokens);
  std::vector<Held> weights = zero.gather({table});
  Held embedded = trace.hold("embedded tokens", "modeling_llama.py LlamaModel.forward", bytes.hidden);
  weights.clear();
  const Held rotation = trace.hold("cosines and sines", "modeling_llama.py LlamaRotaryEmbedding.forward",
                                   2 * 2 * bytes.tokens * run.model.head_dim);
  // What each layer reads: kept on the device, or gone to the host once the layer has run.
  trace.enter("layers' first forward");
  std::vector<Held> layer_inputs;
  layer_inputs.push_back(std::move(embedded));
  // Liger reads the head's weight outside of its module: an external parameter of the whole model, gathered
  // from a step's first module on (parameter_offload.py, get_all_parameters), and left by release_sub_module.
  std::vector<Held> head;
  if (policy.liger_kernels) head = zero.gather({table});
  const int64_t head_elements = policy.liger_kernels ? table : 0;
  for (int64_t number = 0; number < run.model.layers; ++number) {
    weights.clear();
    // Else it is fetched ahead behind the last layer.
    const bool head_is_next = zero.may_be_live(run.model.layers - number);
    weights = zero.gather_layer(head_is_next ? table : head_elements);
    Held output = layer.forward();
    // LlamaModel.forward keeps the name inputs_embeds.
    if (policy.offload_activations && number > 0) layer_inputs.back().release();
    layer_inputs.push_back(std::move(output));
  }
  // The last layer's parameters stay for its backward (partitioned_param_coordinator.py __params_to_release).

  trace.enter("head and loss");
  NormKept kept;
  Held normed = layer.norm(bytes.hidden, bytes.tokens, true, kept);
  Held last = std::move(layer_inputs.back());
  layer_inputs.pop_back();
  if (!policy.liger_kernels) last.release();
  if (policy.offload_activations) layer_inputs.front().release();
  if (!policy.liger_kernels) head = zero.gather({table});
  Held gradient = policy.liger_kernels ? fused_loss(run, trace, zero, bytes, std::move(normed))
                                       : whole_loss(run, trace, zero, bytes, std::move(normed));
  if (!policy.liger_kernels) head.clear();
  gradient = layer.norm_backward(bytes.hidden, std::move(kept), std::move(gradient));
  last.release();
  zero.add_gradient({}, run.model.hidden);  // the norm's weight, after which the head's gradient is reduced

  for (int64_t number = run.model.layers; number-- > 0;) {
    weights.clear();
    weights = zero.gather_layer(head_elements);
    Held input = std::move(layer_inputs.back());
    layer_inputs.pop_back();
    if (policy.offload_activations)
      input = trace.hold("layer's input, back from the host",
                         "monkey_patches.py CheckpointFunctionWithCPUOffload", bytes.hidden);
    Held d_input = layer.forward_and_backward(std::move(gradient));
    gradient = std::move(d_input);
  }
  weights.clear();
  zero.release_ahead();
  head.clear();

  trace.enter("embedding's backward");
  zero.add_gradient(trace.hold("gradient of the embedding, bf16", "embedding_dense_backward", 2 * table),
                    table);
  gradient.release();
  zero.reduce_bucket();
  trace.enter("optimizer");
  zero.step_optimizer();
}

}  // namespace trireme
