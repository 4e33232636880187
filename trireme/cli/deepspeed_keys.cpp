#include "trireme/cli/deepspeed_keys.h"

#include <algorithm>
#include <set>

#include "trireme/base/nearest_name.h"

namespace trireme {
namespace {

constexpr auto kBoolean = DeepSpeedType::boolean;
constexpr auto kWhole = DeepSpeedType::whole;
constexpr auto kNumber = DeepSpeedType::number;
constexpr auto kText = DeepSpeedType::text;
constexpr auto kTwoNumbers = DeepSpeedType::two_numbers;
constexpr auto kAnything = DeepSpeedType::anything;
constexpr auto* kExpertsStay = "experts are not spread over ranks; --zero 3 shards their weights";
using Named = DeepSpeedKey::Named;
using Names = std::vector<std::string>;

// Builds the table: rows have the section and the block (a prefix of their path) that were named last.
class KeyTable {
 public:
  void section(const std::string& title) { section_ = title; }
  void block(const std::string& path) { prefix_ = path.empty() ? "" : path + "."; }

  void option(DeepSpeedType type, const std::string& key, const std::string& option,
              const std::string& answer = "") {
    add({.path = key, .type = type, .use = DeepSpeedUse::option, .option = option, .answer = answer});
  }
  void named(DeepSpeedType type, const std::string& key, const std::string& option,
             const std::vector<Named>& values, const std::string& answer = "", const Json& harmless = {}) {
    add({.path = key,
         .type = type,
         .use = DeepSpeedUse::option,
         .option = option,
         .values = values,
         .harmless = harmless,
         .answer = answer});
  }
  void together(DeepSpeedType type, const std::string& key, const std::string& answer) {
    add({.path = key, .type = type, .use = DeepSpeedUse::together, .answer = answer});
  }
  void nothing(DeepSpeedType type, const Names& keys, const std::string& reason) {
    for (const std::string& key : keys)
      add({.path = key, .type = type, .use = DeepSpeedUse::nothing, .answer = reason});
  }
  void refused(DeepSpeedType type, const Names& keys, const Json& harmless, const std::string& answer) {
    for (const std::string& key : keys)
      add({.path = key, .type = type, .use = DeepSpeedUse::refused, .harmless = harmless, .answer = answer});
  }
  // A block that does nothing while `enabled` is false.
  void refused_block(const std::string& name, const std::string& answer) {
    block(name);
    refused(kBoolean, {"enabled"}, false, answer);
    nothing(kAnything, {"*"}, "nothing while enabled is false");
    block("");
  }
  std::vector<DeepSpeedKey> take() { return std::move(rows_); }

 private:
  void add(DeepSpeedKey row) {
    row.section = section_;
    row.path = prefix_ + row.path;
    rows_.push_back(std::move(row));
  }

  std::string section_, prefix_;
  std::vector<DeepSpeedKey> rows_;
};

void add_batch(KeyTable& t) {
  t.section("Batch");
  t.together(kWhole, "train_batch_size",
             "samples of a step: micro-batch x accumulation x (ranks / ranks that share a sample); of the "
             "three keys one may be left out, and follows");
  t.option(kWhole, "train_micro_batch_size_per_gpu", "per_device_train_batch_size");
  t.option(kWhole, "gradient_accumulation_steps", "gradient_accumulation_steps");
  t.refused(kBoolean, {"managed_gradient_accumulation"}, true, "steps are always counted by the program");
  t.nothing(kBoolean, {"dataloader_drop_last"}, "documents are packed into whole samples");
  t.nothing(kWhole, {"data_parallel_size"}, "it follows: ranks / ranks that share a sample");
  t.refused_block("elasticity", "--keep_global_batch keeps the samples of a step on other ranks");
}

void add_sequence(KeyTable& t) {
  t.section("Sharing a sequence");
  t.option(kWhole, "sequence_parallel_size", "sp");
  t.block("sequence_parallelism");
  t.together(kBoolean, "enabled",
             "false: degree counts as 1. DeepSpeed itself has no such block; guides show it");
  t.together(kWhole, "degree", "--sp; --ulysses or --ring where sequence_parallel_type says so");
  t.together(kText, "sequence_parallel_type", "\"ulysses\" or \"ring\"");
  t.block("");
}

void add_precision(KeyTable& t) {
  t.section("Precision");
  t.block("fp16");
  t.option(kBoolean, "enabled", "fp16");
  t.nothing(kBoolean, {"auto_cast"}, "the model's input is token ids");
  t.refused(kNumber, {"loss_scale"}, 0, "a fixed loss scale is not built; 0 is the dynamic one");
  t.together(kWhole, "initial_scale_power", "--initial_loss_scale, 2 to this power");
  t.option(kWhole, "loss_scale_window", "loss_scale_window");
  t.nothing(kWhole, {"hysteresis"}, "the loss scale is halved at each overflow, as with hysteresis 1");
  t.nothing(kBoolean, {"consecutive_hysteresis"},
            "the loss scale is halved at each overflow, as with hysteresis 1");
  t.nothing(kNumber, {"min_loss_scale"},
            "the loss scale falls to 1 at most, and an overflow there ends the run");
  t.refused(
      kBoolean, {"fp16_master_weights_and_grads"}, false,
      "masters and gradient sums are fp32; --optim_state_dtype bf16 and --offload_optimizer save memory");
  for (const char* block : {"bf16", "bfloat16"}) {
    t.block(block);
    t.option(kBoolean, "enabled", "bf16");
    t.nothing(kBoolean, {"immediate_grad_update"},
              "gradients are added to their fp32 sums as each layer ends");
    t.nothing(
        kBoolean, {"check_grad_overflow", "check_overflow"},
        "a loss or gradient that is not finite is named, and ends the run or is skipped (--on_nonfinite)");
    t.refused(
        kBoolean, {"bf16_master_weights_and_grads"}, false,
        "masters and gradient sums are fp32; --optim_state_dtype bf16 and --offload_optimizer save memory");
    t.named(kBoolean, "bf16_optimizer_states", "optim_state_dtype", {{true, "bf16"}, {false, "fp32"}});
  }
  t.refused_block("amp", "--bf16 or --fp16 computes in 16 bits over fp32 masters");
  t.refused_block("torch_autocast", "--bf16 or --fp16 computes in 16 bits over fp32 masters");
  t.block("data_types");
  t.refused(kText, {"grad_accum_dtype"}, "fp32", "gradients are summed in fp32");
  t.nothing(kText, {"param_dtype", "buffer_dtype"}, "--bf16 and --fp16 say it");
  t.block("");
  for (const char* key : {"communication_data_type", "seq_parallel_communication_data_type"})
    t.named(kText, key, "reduce_dtype", {{"fp32", "fp32"}, {"bf16", "bf16"}});
  t.named(kBoolean, "fp32_allreduce", "reduce_dtype", {{true, "fp32"}}, "", /*harmless=*/false);
}

void add_optimizer(KeyTable& t) {
  t.section("Optimizer");
  t.option(kNumber, "gradient_clipping", "max_grad_norm",
           "without the key 1, as in DeepSpeed, unless a flag gives it");
  t.block("optimizer");
  t.together(kText, "type", "--optim: AdamW and Adam are adamw_torch, SGD is sgd, others by their name");
  t.nothing(kBoolean, {"legacy_fusion"}, "the step has one implementation");
  t.block("optimizer.params");
  t.option(kNumber, "lr", "learning_rate");
  t.together(kTwoNumbers, "betas", "--adam_beta1 and --adam_beta2");
  t.option(kNumber, "eps", "adam_epsilon");
  t.option(kNumber, "weight_decay", "weight_decay",
           "skips norms and biases, as the Trainer does, and other vectors");
  t.together(
      kBoolean, "adam_w_mode",
      "false with type Adam is Adam with L2 decay, which is not built: refused unless weight_decay is 0");
  t.refused(kBoolean, {"bias_correction"}, true, "AdamW always corrects its first steps");
  t.refused(kBoolean, {"amsgrad", "maximize", "nesterov"}, false, "not built");
  t.refused(kNumber, {"momentum", "dampening"}, 0, "sgd keeps no momentum");
  t.refused(kBoolean, {"fp32_optimizer_states"}, true, "--optim_state_dtype bf16 keeps moments in bf16");
  t.refused(kNumber, {"max_grad_norm"}, 0, "the key is gradient_clipping, as in DeepSpeed");
  t.nothing(kBoolean, {"torch_adam", "fused", "foreach", "capturable", "differentiable", "set_grad_none"},
            "the step has one implementation");
  t.block("");
  t.nothing(kBoolean, {"zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"},
            "each optimizer is tested with each stage, and steps where its state lies");
}

void add_scheduler(KeyTable& t) {
  t.section("Scheduler");
  t.block("scheduler");
  t.together(kText, "type",
             "--lr_scheduler_type: WarmupLR is constant_with_warmup, WarmupDecayLR linear, WarmupCosineLR "
             "cosine_with_min_lr; OneCycle and LRRangeTest are not built. DeepSpeed's step n has the rate of "
             "step n - 1 of these");
  t.block("scheduler.params");
  t.option(kNumber, "warmup_max_lr", "learning_rate");
  t.option(kWhole, "warmup_num_steps", "warmup_steps", "without the key 1000, as in DeepSpeed");
  t.together(kWhole, "total_num_steps", "--max_steps: the run is as long as its schedule");
  t.named(kText, "warmup_type", "warmup_type", {{"linear", "linear"}, {"log", "log"}},
          "without the key log, as in DeepSpeed");
  t.together(kNumber, "cos_min_ratio",
             "min_lr_rate of --lr_scheduler_kwargs; without the key 0.0001, as in DeepSpeed");
  t.refused(kNumber, {"warmup_min_lr", "warmup_min_ratio"}, 0, "a warm-up begins at 0");
  t.refused(kWhole, {"last_batch_iteration"}, -1,
            "--resume_from_checkpoint goes on at the step of the checkpoint");
  t.block("");
}

void add_offload(KeyTable& t) {
  const std::vector<Named> devices{{"none", "none"}, {"cpu", "cpu"}, {"nvme", "disk"}};
  const char* const kDirectory = "--offload_dir, where a device is nvme";
  const char* const kPinned = "host memory is pinned on a GPU, within what the machine allows";
  const char* const kBuffers = "units travel whole, one ahead; --offload_limit bounds the disk";
  t.block("zero_optimization.offload_optimizer");
  t.named(kText, "device", "offload_optimizer", devices);
  t.together(kText, "nvme_path", kDirectory);
  t.nothing(kBoolean, {"pin_memory"}, kPinned);
  t.nothing(kWhole, {"buffer_count"}, kBuffers);
  t.nothing(kBoolean, {"pipeline", "pipeline_read", "pipeline_write", "fast_init"}, kBuffers);
  t.refused(kNumber, {"ratio"}, 1, "the whole optimizer is offloaded, or nothing");
  t.nothing(kBoolean, {"super_offload"}, "the host's step runs beside the next step where it can");
  t.nothing(kNumber, {"cpuadam_cores_perc"}, "--threads says how many threads a rank has");
  t.block("zero_optimization.offload_param");
  t.named(kText, "device", "offload_params", devices, "with stage 3");
  t.together(kText, "nvme_path", kDirectory);
  t.nothing(kBoolean, {"pin_memory"}, kPinned);
  t.nothing(kNumber, {"buffer_count", "buffer_size", "max_in_cpu"}, kBuffers);
  t.block("zero_optimization");
  t.named(kBoolean, "cpu_offload", "offload_optimizer", {{true, "cpu"}, {false, "none"}});
  t.named(kBoolean, "cpu_offload_param", "offload_params", {{true, "cpu"}, {false, "none"}});
  t.named(kBoolean, "cpu_offload_params", "offload_params", {{true, "cpu"}, {false, "none"}});
  t.nothing(kBoolean, {"cpu_offload_use_pin_memory"}, kPinned);
}

void add_zero(KeyTable& t) {
  t.section("ZeRO");
  t.block("zero_optimization");
  t.option(kWhole, "stage", "zero");
  add_offload(t);
  t.nothing(kNumber, {"reduce_bucket_size", "allgather_bucket_size", "sub_group_size"},
            "a unit (a layer) is what is gathered, reduced and stepped at once");
  t.nothing(kBoolean,
            {"overlap_comm", "contiguous_gradients", "reduce_scatter", "allgather_partitions",
             "use_multi_rank_bucket_allreduce", "round_robin_gradients", "legacy_stage1"},
            "a unit's gradients are one buffer, reduced as soon as it is whole, beside compute");
  const Names of_stage3{"prefetch_bucket_size",        "param_persistence_threshold",
                        "model_persistence_threshold", "max_live_parameters",
                        "max_reuse_distance",          "module_granularity_threshold"};
  Names numbers;
  for (const std::string& key : of_stage3) numbers.insert(numbers.end(), {"stage3_" + key, key});
  t.nothing(kNumber, numbers, "stage 3 gathers one unit ahead, whatever its size");
  t.nothing(kBoolean,
            {"stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params",
             "stage3_allgather_sequential", "allgather_sequential"},
            "stage 3 gathers one unit ahead, whatever its size");
  t.nothing(kBoolean,
            {"stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save",
             "stage3_gather_fp16_weights_on_model_save"},
            "trireme export makes a whole model of any checkpoint");
  t.nothing(kBoolean, {"load_from_fp32_weights", "elastic_checkpoint", "pipeline_loading_checkpoint"},
            "checkpoints hold fp32 masters, and any number of ranks reads them");
  t.nothing(kBoolean,
            {"ignore_unused_parameters", "override_module_apply", "memory_efficient_linear",
             "log_trace_cache_warnings", "enable_sanity_checks", "mics_hierarchical_params_gather",
             "save_muon_momentum_buffer_in_memory"},
            "of DeepSpeed's own code");
  t.nothing(kAnything, {"leaf_module.*"}, "of DeepSpeed's own code");
  t.refused(kWhole, {"zero_hpz_partition_size"}, 1, "parameters are sharded over all ranks; leave it out");
  t.refused(kWhole, {"mics_shard_size"}, -1, "parameters are sharded over all ranks; leave it out");
  t.refused(kBoolean,
            {"zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"},
            false, "nothing travels quantized; --reduce_dtype bf16 halves what gradients send");
  t.refused(kAnything, {"zeropp_loco_param", "zenflow"}, nullptr, "not built; leave it out");
  t.block("");
  t.nothing(kNumber, {"allgather_size"}, "a unit (a layer) is what is gathered, reduced and stepped at once");
}

void add_memory(KeyTable& t) {
  t.section("Activations");
  t.block("activation_checkpointing");
  t.named(kBoolean, "cpu_checkpointing", "offload_activations", {{true, "cpu"}, {false, "none"}});
  t.nothing(kBoolean, {"partition_activations"}, "a rank keeps the activations of its tokens alone (--sp)");
  t.nothing(kWhole, {"number_checkpoints"}, "--recompute auto fits the memory; --checkpoint_every by hand");
  t.nothing(kBoolean, {"contiguous_memory_optimization", "synchronize_checkpoint_boundary", "profile"},
            "of DeepSpeed's own code");
  t.block("sparse_attention");
  t.refused(kText, {"mode"}, "dense",
            "--sparse_block_tokens, --sparse_local_blocks, --sparse_global_blocks and --sparse_stride_blocks "
            "are block-sparse attention here");
  t.nothing(kAnything, {"*"}, "nothing while mode is dense");
  t.block("");
}

void add_watching(KeyTable& t) {
  t.section("Watching a run");
  t.together(
      kWhole, "steps_per_print",
      "--logging_steps where nothing else gives it: the Trainer has lines of its own beside DeepSpeed's");
  t.option(kBoolean, "memory_breakdown", "memory_report");
  t.nothing(kBoolean, {"wall_clock_breakdown", "dump_state"},
            "metrics.jsonl has seconds, tokens/s and MFU of every step; config.json every option");
  t.nothing(kAnything, {"flops_profiler.*", "comms_logger.*", "timers.*", "log_level"},
            "metrics.jsonl has seconds, tokens/s and MFU of every step; config.json every option");
  t.block("tensorboard");
  t.named(kBoolean, "enabled", "report_to", {{true, "tensorboard"}, {false, "none"}});
  t.together(kText, "output_path", "--logging_dir, with job_name below it, where enabled is true");
  t.together(kText, "job_name", "--logging_dir, below output_path; \"DeepSpeedJobName\" without the key");
  t.block("");
  t.refused_block("csv_monitor", "no CSV is written: metrics.jsonl holds a line a step");
  t.refused_block("wandb",
                  "the run sends nothing: metrics.jsonl and TensorBoard's event files hold its numbers");
  t.refused_block("comet",
                  "the run sends nothing: metrics.jsonl and TensorBoard's event files hold its numbers");
}

void add_others(KeyTable& t) {
  t.section("Others");
  t.nothing(kAnything, {"aio.*"}, "files are read and written by the system's calls, one unit ahead");
  t.nothing(kAnything, {"checkpoint.*"},
            "checkpoints are whole, checksummed, written by all ranks, and any number of ranks reads them");
  t.nothing(kAnything, {"compile.*", "graph_harvesting"}, "the program and its kernels are compiled");
  t.nothing(kBoolean, {"prescale_gradients", "disable_allgather", "sparse_gradients"},
            "gradients are dense, and summed in fp32 over all target tokens of a step");
  t.nothing(kNumber, {"gradient_predivide_factor"},
            "gradients are dense, and summed in fp32 over all target tokens of a step");
  t.refused(kText, {"gradient_allreduce_op"}, "mean",
            "the loss is the mean over all target tokens of a step");
  t.nothing(kWhole, {"vocabulary_size"}, "config.json of the model says it");
  t.nothing(kBoolean, {"use_data_before_expert_parallelism"}, kExpertsStay);
  t.refused_block("curriculum_learning", "--context_stages trains on growing lengths");
  t.refused_block("data_efficiency", "--context_stages trains on growing lengths");
  t.refused_block("autotuning", "--recompute auto chooses by a forecast, without trial runs");
  t.refused_block("progressive_layer_drop", "not built: all layers are trained");
  t.refused_block("eigenvalue", "not built");
  t.refused_block("hybrid_engine", "generation is not built");
  t.refused_block("expert_parallel", kExpertsStay);
  t.refused_block("nebula", "checkpoints are written by the ranks themselves");
  t.refused_block("zenflow", "not built: --offload_optimizer cpu steps on the host");
  t.refused(kAnything, {"pipeline", "tensor_parallel"}, nullptr,
            "tensor and pipeline parallelism are not built: --sp shares sequences, --zero 3 the model");
  t.refused(kAnything, {"compression_training", "quantize_training", "weight_quantization"}, nullptr,
            "weights are trained as they are: quantize the exported model");
  t.refused(kAnything, {"datastates_ckpt"}, nullptr, "checkpoints are written by the ranks themselves");
}

std::string last_name_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0
}

}  // namespace

const std::vector<DeepSpeedKey>& deepspeed_keys() {
  static const std::vector<DeepSpeedKey> all = [] {
    KeyTable table;
    for (const auto add : {add_batch, add_sequence, add_precision, add_optimizer, add_scheduler, add_zero,
                           add_memory, add_watching, add_others})
      add(table);
    return table.take();
  }();
  return all;
}

const DeepSpeedKey* find_deepspeed_key(const std::string& path) {
  const DeepSpeedKey* all_below = nullptr;
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    if (key.path == path) return &key;
    if (key.path.ends_with(".*") && path.starts_with(key.path.substr(0, key.path.size() - 1)))
      all_below = &key;
  }
  return all_below;
}

bool is_deepspeed_block(const std::string& path) {
  return std::any_of(deepspeed_keys().begin(), deepspeed_keys().end(),
                     [&](const DeepSpeedKey& key) { return key.path.starts_with(path + "."); });
}

std::string nearest_deepspeed_key(const std::string& path) {
  // A right name in the wrong block, or a slip in a name of the right one.
  std::set<std::string> siblings, moved;
  const std::string prefix = path.substr(0, path.rfind('.') + 1);  // npos + 1 is 0
  for (const DeepSpeedKey& key : deepspeed_keys())
    for (size_t dot = key.path.find('.');; dot = key.path.find('.', dot + 1)) {
      const std::string known = key.path.substr(0, dot);
      if (last_name_of(known) == last_name_of(path)) moved.insert(known);
      if (known.starts_with(prefix) && known.find('.', prefix.size()) == std::string::npos)
        siblings.insert(last_name_of(known));
      if (dot == std::string::npos) break;
    }
  if (moved.size() == 1) return *moved.begin();
  const auto nearest = nearest_name(last_name_of(path), {siblings.begin(), siblings.end()});
  return nearest ? prefix + *nearest : moved.empty() ? "" : *moved.begin();
}

}  // namespace trireme
