#include "trireme/engine/check_options.h"

#include "trireme/attention/head_shares.h"
#include "trireme/base/error.h"
#include "trireme/kernels/backward_heads.h"
#include "trireme/kernels/flash4_sizes.h"

namespace trireme {
namespace {

void check_offload(const EngineOptions& options) {
  const OffloadOptions& offload = options.offload;
  const bool disk = uses_disk(offload);
  if (disk && offload.folder.empty())
    throw ConfigError("offload to disk needs a folder on a fast local disk: give --offload_dir DIR");
  if (!disk && (!offload.folder.empty() || offload.limit_bytes != 0))
    throw ConfigError(
        "--offload_dir and --offload_limit are for offload to disk, and nothing is offloaded there; give "
        "--offload_params, --offload_optimizer or --offload_activations disk, or leave them out");
  if (offload.parameters != Offload::none && options.zero != ZeroStage::parameters)
    throw ConfigError(
        "--offload_params moves parameters that are gathered unit by unit, which is --zero 3; give that too "
        "(it works on one rank as well)");
  if (offload.activations != Offload::none && options.recompute.policy == Recompute::none)
    throw ConfigError(
        "--offload_activations with --recompute none would move all that backward reads, more than can be "
        "moved in the time; use --recompute keep_attention or full");
  if (offload.activations != Offload::none && !options.recompute.keeps_attention_at_most())
    throw ConfigError(
        "--offload_activations with --keep_qkv_fraction or --keep_mlp_fraction would move more than can be "
        "moved in the time; leave them out");
  if (options.precision == Precision::fp32) check_stored_states(options, at::kFloat);
  if (options.purpose == Purpose::training) return;
  if (offload.activations != Offload::none || offload.optimizer != Offload::none ||
      options.zero == ZeroStage::optimizer || options.zero == ZeroStage::gradients)
    throw ConfigError(
        "evaluation keeps neither activations nor gradients nor an optimizer's state: leave "
        "--offload_activations, --offload_optimizer and --zero 1 or 2 out; --zero 3 shards the parameters");
}

void check_sequence(const EngineOptions& options) {
  if (options.ring_method == RingMethod::gather && options.ring == 1)
    throw ConfigError(
        "--ring_method gather: there is no ring whose keys could be gathered; give --ring N, or leave it "
        "out");
  if (options.head_chunks > 1 && options.ulysses == 1)
    throw ConfigError(
        "--head_chunks cuts the heads that --ulysses ranks exchange, and with --ulysses 1 there are none; "
        "give --ulysses N, or leave it out");
  const SparseBlocks& sparse = options.sparse;
  if (sparse.dense()) {
    if (!(sparse == SparseBlocks{}))
      throw ConfigError(
          "--sparse_local_blocks, --sparse_global_blocks and --sparse_stride_blocks need "
          "--sparse_block_tokens N, the size of a block");
    return;
  }
  if (sparse.block_tokens % 64 != 0)
    throw ConfigError(cat("--sparse_block_tokens is ", sparse.block_tokens, "; expected a multiple of 64"));
  if (options.ring > 1)
    throw ConfigError(cat("--sparse_block_tokens with --ring ", options.ring,
                          ": a ring rank holds a part of the sequence, and block-sparse layouts need the "
                          "whole; use --ulysses alone"));
  if (!options.device.is_cpu() && options.attention != AttentionKernel::reference)
    throw ConfigError(
        "--sparse_block_tokens: the CUDA kernels have no block-sparse layouts; use --attention reference, or "
        "--device cpu");
}

void check_optimizer(const EngineOptions& options) {
  const OptimizerKind& kind = *options.optimizer.kind;
  if (options.optimizer.state_dtype != at::kFloat && !kind.bf16_states)
    throw ConfigError(cat("--optim_state_dtype: ", kind.name,
                          kind.state_names.empty() ? " has no states" : " keeps its states in fp32 alone",
                          "; leave it out"));
  const OptimizerSettings unless_given;
  if (kind.state_names.empty() &&
      (options.optimizer.beta1 != unless_given.beta1 || options.optimizer.beta2 != unless_given.beta2 ||
       options.optimizer.epsilon != unless_given.epsilon))
    throw ConfigError(cat("--adam_beta1, --adam_beta2 and --adam_epsilon are AdamW's, and --optim is ",
                          kind.name, "; leave them out"));
  if (!options.update_in_backward) return;
  if (options.optimizer.max_grad_norm > 0)
    throw ConfigError(
        cat("--update_in_backward steps a unit before the norm of all gradients is known, so they cannot be "
            "clipped to --max_grad_norm ",
            options.optimizer.max_grad_norm, "; give --max_grad_norm 0"));
  if (options.precision == Precision::fp16)
    throw ConfigError(
        "--update_in_backward steps a unit before it is known whether gradients of another one overflow, "
        "which fp16's loss scale needs; use bf16");
}

void check_lora(const LoraOptions& lora) {
  if (lora.given()) return;
  for (const std::string& name : given_lora_options(lora))
    throw ConfigError(cat("--", name, " is of LoRA, and --lora_r is 0; give --lora_r 16, or leave it out"));
}

void check_recompute(const RecomputePlan& plan) {
  if (plan.policy == Recompute::none && plan.checkpoint_every > 1)
    throw ConfigError(cat("--checkpoint_every ", plan.checkpoint_every,
                          " means nothing with --recompute none, which runs no layer again; use --recompute "
                          "full or keep_attention, or give --checkpoint_every 0"));
  if (plan.policy == Recompute::full && plan.keep_fraction != 1)
    throw ConfigError(cat("--keep_fraction ", plan.keep_fraction,
                          " means nothing with --recompute full, which keeps the same of every layer; use "
                          "--recompute keep_attention or none, or leave it out"));
  if (plan.policy == Recompute::automatic && plan.keep_fraction != 1)
    throw ConfigError(cat("--keep_fraction ", plan.keep_fraction,
                          " means nothing with --recompute auto, which chooses the layers by what fits; give "
                          "--recompute keep_attention with it, or leave it out"));
  if (!plan.keeps_qkv_or_mlp()) return;
  const char* const given = plan.keep_qkv_fraction > 0 ? "--keep_qkv_fraction" : "--keep_mlp_fraction";
  if (plan.policy != Recompute::keep_attention)
    throw ConfigError(cat(given, " is what layers keep beside attention's output, and --recompute is ",
                          name_of(plan.policy),
                          "; give --recompute keep_attention with it (and --keep_fraction 0 for none of that "
                          "output), or leave it out"));
  if (plan.checkpoint_every > 1)
    throw ConfigError(cat(given, " goes with the input of every layer alone, and --checkpoint_every is ",
                          plan.checkpoint_every, "; leave one of them out"));
}

void check_memory_budget(const EngineOptions& options) {
  if (options.memory_budget_bytes == 0) return;
  if (options.purpose == Purpose::evaluation)
    throw ConfigError("--memory_budget: evaluation keeps nothing for backward; leave it out");
  if (options.recompute.policy != Recompute::automatic)
    throw ConfigError(cat("--memory_budget is what --recompute auto plans with, and --recompute is ",
                          name_of(options.recompute.policy), "; leave one of them out"));
}

}  // namespace

void check_heads(const EngineOptions& options, const ModelConfig& config) {
  if (config.score_cap > 0 && options.device.is_cuda()) check_caps_scores(options.attention);
  if (takes_whole_samples_alone(options.attention))
    for (size_t layer = 0; layer < config.layer_window.size(); ++layer)
      if (config.layer_window[layer] > 0)
        throw ConfigError(cat("--attention ", name_of(options.attention), ": layer ", layer,
                              " of the model has a window of ", config.layer_window[layer],
                              " tokens, which that kernel does not know; use --attention auto or flash"));
  const int64_t H = config.num_attention_heads;
  const bool in_16_bits_on_cuda = options.device.is_cuda() && options.precision != Precision::fp32;
  const bool by_name = options.attention == AttentionKernel::flash ||
                       options.attention == AttentionKernel::cudnn ||
                       options.attention == AttentionKernel::cudnn_packed;
  for (const AttentionHeads& heads : {config.heads(), config.heads_of_full_attention()}) {
    if (in_16_bits_on_cuda && by_name && heads.width > kMostFlashWidth)
      throw ConfigError(cat("--attention ", name_of(options.attention), ": the model has heads ", heads.width,
                            " wide, expected at most ", kMostFlashWidth, "; use --attention auto"));
    if (options.attention == AttentionKernel::flash4 && !flash4_takes_heads(H, heads.key_value, heads.width))
      throw ConfigError(cat("--attention flash4: the model has ", H, " query and ", heads.key_value,
                            " key/value heads ", heads.width, " wide, expected a width of ", flash4_widths(),
                            " and at most ", kFlash4MostGroup,
                            " query heads a key/value head; use --attention auto"));
  }
  check_one_rank_a_head(H, options.ulysses);
  const int64_t most = most_heads_of_rank(H, options.ulysses);
  if (options.head_chunks > most)
    throw ConfigError(cat("--head_chunks ", options.head_chunks, ": a rank computes at most ", most,
                          " of the ", H, " query heads; use --head_chunks ", most, " or less"));
}

void check_stored_states(const EngineOptions& options, at::ScalarType compute_dtype) {
  const OptimizerKind& kind = *options.optimizer.kind;
  if (kind.state_names.empty() && compute_dtype == at::kFloat && options.offload.optimizer != Offload::none)
    throw ConfigError(cat("--offload_optimizer: ", kind.name,
                          " on fp32 values keeps nothing that could be offloaded; leave it out, or offload "
                          "the parameters (--zero 3 --offload_params)"));
}

void check_engine_options(const EngineOptions& options) {
  list_of_copy(options, list_training_options).check();
  check_offload(options);
  check_sequence(options);
  check_optimizer(options);
  check_lora(options.lora);
  check_recompute(options.recompute);
  check_memory_budget(options);
}

}  // namespace trireme
