#include "trireme/engine/engine_options.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr OptionRange kDegree = from_to(1, kMostRanks);
constexpr OptionRange kTokens = from_to(0, kMostTokens);
constexpr auto kSumDtypes = std::span(kDtypeNames).first(2);

}  // namespace

const char* dtype_name(at::ScalarType dtype) {
  for (const auto& [known, name] : kDtypeNames)
    if (known == dtype) return name;
  throw InternalError(cat("dtype ", dtype, " has no name"));
}

at::ScalarType storage_dtype(Precision precision) {
  constexpr at::ScalarType kStorage[] = {at::kFloat, at::kBFloat16, at::kHalf};
  return kStorage[static_cast<size_t>(precision)];
}

void list_engine_options(OptionList& list, EngineOptions& o) {
  list.group(OptionGroup::model);
  list.choice("attention", o.attention, "attention kernel").in_stages();
  list_rope_options(list, o.rope);
  list_adapter_option(list, o.lora);

  list.group(OptionGroup::memory);
  list.choice("recompute", o.recompute.policy,
              "what backward computes again instead of keeping it; auto: as little as memory allows, what "
              "costs most time a byte kept first")
      .in_stages();
  list.count(
          "checkpoint_every", o.recompute.checkpoint_every, at_least(0),
          "layers a group: the input of its first layer is kept, and backward makes the other inputs again; "
          "0: with --recompute auto as memory asks, else 1")
      .in_stages();
  list.real("keep_fraction", o.recompute.keep_fraction, from_to(0, 1),
            "share of the layers that keep what --recompute says; the others their input alone")
      .in_stages();
  list.real("keep_qkv_fraction", o.recompute.keep_qkv_fraction, from_to(0, 1),
            "with --recompute keep_attention: share of the layers that keep q, k and v too")
      .in_stages();
  list.real("keep_mlp_fraction", o.recompute.keep_mlp_fraction, from_to(0, 1),
            "with --recompute keep_attention: share of the layers that keep the MLP's input, gate and up too")
      .in_stages();
  list.count("memory_budget", o.memory_budget_bytes, at_least(0),
             "bytes that --recompute auto plans with on each rank; takes 60g; 0: by what is free")
      .on_resume(ResumeRule::free)
      .of_machine();
  list.count("host_memory_limit", o.host_memory_limit_bytes, at_least(0),
             "bytes of host memory that the ranks of this machine may hold together; takes 200g; 0: by what "
             "the machine and its limits say, which is too little where its memory grows on demand")
      .on_resume(ResumeRule::free)
      .of_machine();
  list.count("zero", o.zero, from_to(0, 3),
             "shard over all ranks: 1 the optimizer's state, 2 also gradients, 3 also parameters")
      .in_stages();
  list.choice("offload_params", o.offload.parameters, "where parameter shards lie while no layer uses them")
      .in_stages();
  list.choice("offload_activations", o.offload.activations, "where what forward keeps lies until backward")
      .in_stages();
  list.path("offload_dir", o.offload.folder, "folder on a fast local disk, for offload to disk")
      .on_resume(ResumeRule::free);
  list.count("offload_limit", o.offload.limit_bytes, at_least(0),
             "bytes on disk that a rank may use; takes 200g; 0: what there is")
      .on_resume(ResumeRule::free)
      .of_machine();
  list.count("tile_tokens", o.tile_tokens, kTokens,
             "tokens of one tile of a layer's token-wise parts; 0: by rule")
      .in_stages();
  list.count("logits_tile_tokens", o.logits_tile_tokens, kTokens,
             "tokens of one tile of the head; 0: by rule")
      .in_stages();

  list.group(OptionGroup::sequence);
  list.count("ulysses", o.ulysses, kDegree,
             "ranks that trade sequence for heads; the others take other samples")
      .in_stages();
  list.count("ring", o.ring, kDegree,
             "groups of --ulysses ranks in a ring: more ranks a sequence than there are heads")
      .in_stages();
  list.choice("ring_method", o.ring_method,
              "keys and values travel round the ring, or are gathered at once (more memory, one exchange)")
      .in_stages();
  list.count("head_chunks", o.head_chunks, kDegree,
             "chunks of heads in Ulysses' exchanges: the next one travels while attention computes, and "
             "memory falls")
      .in_stages();
  list.count("sparse_block_tokens", o.sparse.block_tokens, kTokens,
             "block-sparse attention in blocks of so many tokens, a multiple of 64; 0: dense");
  list.count("sparse_local_blocks", o.sparse.local_blocks, at_least(1),
             "blocks that a block sees, counted from itself");
  list.count("sparse_global_blocks", o.sparse.global_blocks, at_least(0),
             "first blocks of the sequence, which all see");
  list.count("sparse_stride_blocks", o.sparse.stride_blocks, at_least(0),
             "every so many-th block is seen by all; 0: none");
  list.flag("strict_divisible", o.strict_divisible, "refuse lengths that leave ranks with unequal shares");

  list.group(OptionGroup::process);
  list.derived("device", [&o] { return Json(o.device.str()); }).of_machine();
}

void list_update_options(OptionList& list, EngineOptions& o) {
  list.group(OptionGroup::model);
  list_lora_options(list, o.lora);
  list.flag("bf16", o.precision, Precision::bf16, "compute in bf16, with fp32 masters and sums");
  list.flag("fp16", o.precision, Precision::fp16,
            "compute in fp16, with fp32 masters and sums and a dynamic loss scale");
  list.real("initial_loss_scale", o.loss_scale.initial, from_to(1, kLargestLossScale),
            "fp16: loss scale of the first step");
  list.count("loss_scale_window", o.loss_scale.growth_steps, at_least(1),
             "fp16: steps without overflow after which the loss scale doubles");

  list.group(OptionGroup::optimizer);
  constexpr double kMostFloat = 1e38;  // a bit below what fp32 holds
  OptimizerOptions& optimizer = o.optimizer;
  // A kind that is not in the registry, as a test's own, has a name too.
  list.choice("optim", optimizer.kind, optimizer_names(), "optimizer; adamw_torch_fused is adamw_torch")
      .read = [&optimizer] { return Json(optimizer.kind->name); };
  list.real("adam_beta1", optimizer.beta1, from_to_below(0, 1), "decay of AdamW's mean of gradients");
  list.real("adam_beta2", optimizer.beta2, from_to_below(0, 1), "decay of AdamW's mean of squared gradients");
  list.real("adam_epsilon", optimizer.epsilon, from_to(0, 1), "added to the root of AdamW's mean of squares");
  list.real("weight_decay", optimizer.weight_decay, from_to(0, kMostFloat),
            "skips norms, biases and other vectors");
  list.real("max_grad_norm", optimizer.max_grad_norm, from_to(0, kMostFloat),
            "gradients are clipped to this norm; 0: not");
  list.choice("optim_state_dtype", optimizer.state_dtype, kSumDtypes,
              "of AdamW's moments; bf16 is rounded stochastically");
  list.choice("reduce_dtype", o.reduce_dtype, kSumDtypes, "in which gradients travel; sums are fp32");
  list.flag("update_in_backward", o.update_in_backward,
            "step each layer as soon as its gradient is whole, so that gradients never exist together")
      .in_stages();

  list.group(OptionGroup::memory);
  list.choice("offload_optimizer", o.offload.optimizer,
              "where fp32 masters and moments lie; the step runs on the host then")
      .in_stages();
}

void list_training_options(OptionList& list, EngineOptions& o) {
  list_engine_options(list, o);
  list_update_options(list, o);
}

}  // namespace trireme
