#include "trireme/train/train_options.h"

#include "trireme/base/error.h"
#include "trireme/train/option_ranges.h"

namespace trireme {
namespace {

const char* ring_method_name(RingMethod method) {
  switch (method) {
    case RingMethod::ring:
      return "ring";
    case RingMethod::gather:
      return "gather";
  }
  throw InternalError("a ring method without a name");
}

template <typename Number>
Json optional_number(const std::optional<Number>& number) {
  return number ? Json(*number) : Json();
}

}  // namespace

void check_options(const TrainOptions& o) {
  check_ranges(o);
  if (o.dropout.value_or(0) != 0)
    throw ConfigError(cat("--dropout is ", *o.dropout, "; expected 0: dropout is not built"));
  if (o.engine.update_in_backward && o.gradient_accumulation_steps > 1)
    throw ConfigError(
        cat("--update_in_backward steps a layer as soon as its gradient is whole, which "
            "--gradient_accumulation_steps ",
            o.gradient_accumulation_steps, " does not allow; use 1"));
  if (o.overwrite_output_dir && resumes(o))
    throw ConfigError(
        cat("--overwrite_output_dir removes an earlier run, and --resume_from_checkpoint ",
            o.resume_from_checkpoint,
            " goes on with one: give one of them (a restart by the launcher goes on with what it wrote in "
            "either case)"));
  if (!o.tensorboard && !o.logging_dir.empty())
    throw ConfigError(
        "--logging_dir is for TensorBoard's event files, which --report_to none does not write; leave one "
        "of them out");
  if (!o.eval_file.empty() && o.validation_split_percentage > 0)
    throw ConfigError("give either --eval_file or --validation_split_percentage, not both");
}

void check_dropout(const TrainOptions& options, const ModelConfig& config) {
  if (options.dropout || config.dropout.empty()) return;
  std::string fields;
  for (const auto& [field, rate] : config.dropout)
    fields += cat(fields.empty() ? "" : " and ", field, " ", rate);
  throw ConfigError(cat((options.model_dir / "config.json").string(), " asks training to drop activations (",
                        fields, "), and dropout is not built; give --dropout 0 to train without it"));
}

bool resumes(const TrainOptions& o) {
  const std::string& asked = o.resume_from_checkpoint;
  return !asked.empty() && asked != "false" && asked != "False";
}

StageDefaults stage_defaults(const TrainOptions& o) {
  return {parse_schedule(o.lr_scheduler_type), parse_schedule_shape(o.lr_scheduler_kwargs), o.learning_rate,
          o.warmup_steps, o.warmup_ratio};
}

Json to_json(const TrainOptions& o) {
  const OptimizerOptions& optimizer = o.engine.optimizer;
  return {{"model_name_or_path", o.model_dir.string()},
          {"train_file", o.train_file.string()},
          {"eval_file", o.eval_file.string()},
          {"validation_split_percentage", o.validation_split_percentage},
          {"text_field", o.text_field},
          {"append_eos", o.append_eos},
          {"packing", name_of(o.samples.packing)},
          {"mlm_probability", optional_number(o.samples.mlm_probability)},
          {"mask_token_id", optional_number(o.samples.mask_token_id)},
          {"max_seq_length", o.max_seq_length},
          {"context_stages", o.context_stages},
          {"max_steps", o.max_steps},
          {"num_train_epochs", o.num_train_epochs},
          {"per_device_train_batch_size", o.per_device_train_batch_size},
          {"gradient_accumulation_steps", o.gradient_accumulation_steps},
          {"learning_rate", o.learning_rate},
          {"lr_scheduler_type", o.lr_scheduler_type},
          {"lr_scheduler_kwargs", o.lr_scheduler_kwargs},
          {"warmup_ratio", o.warmup_ratio},
          {"warmup_steps", o.warmup_steps},
          {"device", o.engine.device.str()},
          {"bf16", o.engine.precision == Precision::bf16},
          {"fp16", o.engine.precision == Precision::fp16},
          {"recompute", name_of(o.engine.recompute)},
          {"memory_budget", o.engine.memory_budget_bytes},
          {"host_memory_limit", o.engine.host_memory_limit_bytes},
          {"checkpoint_every", o.engine.checkpoint_every},
          {"keep_fraction", o.engine.keep_fraction},
          {"zero", static_cast<int>(o.engine.zero)},
          {"reduce_dtype", dtype_name(o.engine.reduce_dtype)},
          {"update_in_backward", o.engine.update_in_backward},
          {"offload_params", name_of(o.engine.offload.parameters)},
          {"offload_optimizer", name_of(o.engine.offload.optimizer)},
          {"offload_activations", name_of(o.engine.offload.activations)},
          {"offload_dir", o.engine.offload.folder.string()},
          {"offload_limit", o.engine.offload.limit_bytes},
          {"optim_state_dtype", dtype_name(optimizer.state_dtype)},
          {"attention", name_of(o.engine.attention)},
          {"ulysses", o.engine.ulysses},
          {"ring", o.engine.ring},
          {"ring_method", ring_method_name(o.engine.ring_method)},
          {"head_chunks", o.engine.head_chunks},
          {"sparse_block_tokens", o.engine.sparse.block_tokens},
          {"sparse_local_blocks", o.engine.sparse.local_blocks},
          {"sparse_global_blocks", o.engine.sparse.global_blocks},
          {"sparse_stride_blocks", o.engine.sparse.stride_blocks},
          {"strict_divisible", o.engine.strict_divisible},
          {"tile_tokens", o.engine.tile_tokens},
          {"logits_tile_tokens", o.engine.logits_tile_tokens},
          {"optim", optimizer.kind->name},
          {"adam_beta1", optimizer.beta1},
          {"adam_beta2", optimizer.beta2},
          {"adam_epsilon", optimizer.epsilon},
          {"weight_decay", optimizer.weight_decay},
          {"dropout", optional_number(o.dropout)},
          {"max_grad_norm", optimizer.max_grad_norm},
          {"output_dir", o.output_dir.string()},
          {"overwrite_output_dir", o.overwrite_output_dir},
          {"resume_from_checkpoint", o.resume_from_checkpoint},
          {"resume_with_new_data", o.resume_with_new_data},
          {"keep_global_batch", o.keep_global_batch},
          {"save_steps", o.save_steps},
          {"save_total_limit", o.save_total_limit},
          {"logging_steps", o.logging_steps},
          {"eval_steps", o.eval_steps},
          {"max_eval_samples", o.max_eval_samples},
          {"seed", o.seed},
          {"report_to", o.tensorboard ? "tensorboard" : "none"},
          {"logging_dir", o.logging_dir.string()},
          {"memory_report", o.memory_report},
          {"peak_tflops", o.peak_tflops}};
}

}  // namespace trireme
