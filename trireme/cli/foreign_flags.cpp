#include "trireme/cli/foreign_flags.h"

#include <cstdlib>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr const char* kMetrics =
    "metrics are in metrics.jsonl and in TensorBoard's event files (--report_to tensorboard, --logging_dir)";
constexpr const char* kOptimizers =
    "--optim is adamw_torch or sgd; --optim_state_dtype bf16, --zero and --offload_optimizer make its state "
    "small";

// "0.1"
bool is_share(const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  return *end == '\0' && number > 0 && number < 1;
}

}  // namespace

const std::vector<ForeignProgram>& foreign_programs() {
  static const std::vector<ForeignProgram> all{
      {"Hugging Face Trainer (TrainingArguments)",
       {
           {{"do_train"}, "trireme train always trains; leave it out"},
           {{"do_eval", "do_predict"},
            "--eval_file or --validation_split_percentage makes train evaluate; trireme eval evaluates "
            "alone"},
           {{"eval_strategy", "evaluation_strategy", "eval_on_start", "eval_delay"},
            "--eval_steps N evaluates after every N steps, 0 (the default) at the end; on --eval_file or on "
            "the end of --train_file that --validation_split_percentage holds out"},
           {{"save_strategy", "save_on_each_node"},
            "--save_steps N saves after every N steps, 0 only at the end; --save_minutes N by the clock too"},
           {{"logging_strategy", "logging_first_step"},
            "every step is in metrics.jsonl; --logging_steps N is for printed lines"},
           {{"per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_batch_size",
             "eval_accumulation_steps"},
            "not needed: evaluation takes one sample of each group of ranks at a time, and the loss is the "
            "same for any batch"},
           {{"per_gpu_train_batch_size", "train_batch_size", "batch_size", "train_micro_batch_size_per_gpu"},
            "--per_device_train_batch_size N, samples of one micro-batch of each group of ranks that share a "
            "sample"},
           {{"auto_find_batch_size"},
            "not needed: memory is computed before the run, and --recompute auto fits it"},
           {{"lr"}, "--learning_rate"},
           {{"epochs", "num_epochs"}, "--num_train_epochs"},
           {{"min_lr", "min_lr_ratio"},
            R"(--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{"min_lr_rate": 0.1}')"},
           {{"early_stopping_patience", "early_stopping_threshold"},
            "not built: --metric_for_best_model eval_loss keeps the best checkpoint of the whole run"},
           {{"gradient_checkpointing_kwargs"}, "--recompute says what backward computes again"},
           {{"dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor",
             "dataloader_persistent_workers", "remove_unused_columns"},
            "not needed: a tokenized set (trireme tokenize) is read from its files as it is needed, without "
            "worker processes"},
           {{"torch_compile", "torch_compile_backend", "torch_compile_mode", "torchdynamo", "jit_mode_eval"},
            "not needed: the program and its kernels are compiled"},
           {{"tf32"}, "not built: fp32 products of matrices stay in fp32; --bf16 is the fast precision"},
           {{"bf16_full_eval", "fp16_full_eval"},
            "evaluation in training has the precision of training; eval loss takes --bf16"},
           {{"fp16_opt_level", "fp16_backend", "half_precision_backend"},
            "--fp16 alone: fp32 masters and a dynamic loss scale belong to it"},
           {{"optim_args"}, "--adam_beta1, --adam_beta2, --adam_epsilon and --weight_decay"},
           {{"adafactor", "optim_target_modules"}, kOptimizers},
           {{"group_by_length", "length_column_name", "train_sampling_strategy"},
            "not needed: --packing documents fills every sample; a document that a sample's end cuts goes on "
            "in another sample as a new one (--packing best_fit keeps documents whole; none: a document a "
            "sample)"},
           {{"neftune_noise_alpha"}, "noise on embeddings is not built"},
           {{"label_smoothing_factor"}, "not built: the loss is cross entropy"},
           {{"use_liger_kernel", "liger_kernel_config"},
            "not needed: token-wise operations are fused and the loss runs in tiles (--tile_tokens, "
            "--logits_tile_tokens)"},
           {{"push_to_hub", "hub_model_id", "hub_token", "hub_strategy", "hub_private_repo"},
            "trireme export writes a model's folder; upload it with:  hf upload"},
           {{"run_name"}, "--output_dir is the run's name"},
           {{"load_best_model_at_end"},
            "nothing is loaded at the end: --metric_for_best_model eval_loss keeps the best checkpoint and "
            "tells its path at the end, for trireme export --checkpoint"},
           {{"greater_is_better"},
            "not needed: of what --metric_for_best_model takes, eval_loss and eval_perplexity, less is "
            "better"},
           {{"distributed_backend"}, "--ddp_backend, if at all: auto takes NCCL where --device is cuda"},
           {{"ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"},
            "not needed: each unit's gradients are reduced as soon as they are whole"},
           {{"local_rank", "rank", "world_size", "local_world_size"},
            "ranks are read from the environment, as trireme launch, torchrun, srun and mpirun set it"},
           {{"no_cuda", "use_cpu"}, "--device cpu"},
           {{"use_mps_device", "use_ipex"}, "--device is cpu or cuda"},
           {{"include_num_input_tokens_seen", "include_tokens_per_second", "skip_memory_metrics"},
            "not needed: every line of metrics.jsonl has them"},
           {{"log_level", "log_level_replica", "log_on_each_node", "disable_tqdm"},
            "not needed: rank 0 prints, one live line on a terminal and plain lines elsewhere"},
           {{"data_seed", "full_determinism"},
            "--seed decides the order of samples; runs on a CPU repeat bit for bit"},
           {{"save_safetensors", "save_only_model"},
            "checkpoints are safetensors with the optimizer's state; trireme export writes the model alone"},
           {{"resume", "resume_from"}, "--resume_from_checkpoint true"},
           {{"ignore_data_skip"}, "not needed: --resume_from_checkpoint goes on at the next sample at once"},
           {{"average_tokens_across_devices"}, "always so: one mean over the target tokens of all ranks"},
           {{"wandb_project", "wandb_entity", "wandb_name", "wandb_exp_name"}, kMetrics},
       }},

      {"run_clm.py, from_pretrained",
       {
           {{"config_file", "args_file"}, "--config FILE, YAML or JSON with the names of these options"},
           {{"config_name", "tokenizer_name", "tokenizer_name_or_path", "use_fast_tokenizer"},
            "config.json and tokenizer.json of --model_name_or_path are read; trireme tokenize takes another "
            "--tokenizer"},
           {{"model_type", "config_overrides"},
            "trireme init makes a fresh model: --preset NAME --set key=value"},
           {{"dataset_name", "dataset", "dataset_config", "dataset_config_name", "datasets", "train_data",
             "training_data", "test_file"},
            "nothing is downloaded: --train_file is text, .jsonl, a folder of these, or a set made by "
            "trireme tokenize"},
           {{"validation_file", "eval_data"}, "--eval_file"},
           {{"val_set_size", "val_size"},
            "--validation_split_percentage N holds out the last N per cent of the set, in its own order: to "
            "hold out documents at random, trireme mix --set SET --output SHUFFLED first"},
           {{"max_train_samples"}, "--max_steps bounds a run"},
           {{"block_size", "max_length", "model_max_length", "max_source_length", "cutoff_len"},
            "--max_seq_length N; of trireme train also --context_stages, for several lengths"},
           {{"preprocessing_num_workers", "dataset_num_proc", "overwrite_cache", "streaming",
             "keep_linebreaks"},
            "not needed: trireme tokenize uses all cores once, python -m trireme.chats as many processes as "
            "it is given, and a run reads the set as it needs it"},
           {{"trust_remote_code"}, "not needed: no code of a model's folder is ever run"},
           {{"cache_dir", "model_revision", "revision", "token", "use_auth_token"},
            "download first (hf download ORG/NAME): org/name is the snapshot in the Hugging Face cache "
            "(HF_HOME, HF_HUB_CACHE); a folder's path is any other"},
           {{"torch_dtype", "dtype", "precision", "mixed_precision"},
            "--bf16 or --fp16 computes in 16 bits over fp32 masters; trireme export takes --dtype, verify "
            "--precision"},
           {{"low_cpu_mem_usage"}, "not needed: each rank reads its share, in pieces of 8 MiB"},
           {{"attn_implementation", "attention_implementation", "use_flash_attention_2", "use_flash_attn",
             "flash_attn", "flash_attention", "use_sdpa"},
            "attention is chosen by --attention auto|flash|flash4|cudnn|cudnn_packed|tiles|reference"},
           {{"max_position_embeddings", "rotary_base", "rope_type", "rope_factor", "rope_scaling_type",
             "rope_scaling_factor", "rotary_scaling_factor", "use_rope_scaling", "yarn_factor"},
            "--rope_scaling KIND:FACTOR (yarn, linear, dynamic, llama3, proportional) stretches the "
            "positions of pretraining, --rope_theta sets their base; what is exported says so"},
       }},

      {"TRL, PEFT",
       {
           {{"use_peft", "use_lora", "lora_rank", "peft_lora_r", "lora_modules", "lora_target_linear",
             "peft_type", "lora_target", "lora_task_type", "peft_config", "finetuning_type"},
            "--lora_r N trains LoRA matrices of that rank, with --lora_alpha and --lora_target_modules; "
            "trireme export makes a folder of PEFT of them, or with --merge a model"},
           {{"lora_dropout"}, "dropout is not built; leave it out"},
           {{"modules_to_save", "additional_target", "trainable_params"},
            "--lora_modules_to_save embed_tokens,norm trains these whole beside LoRA"},
           {{"use_dora"}, "DoRA is not built; leave it out"},
           {{"adapter_name_or_path", "peft_model_id", "lora_model_dir"},
            "--adapter DIR begins with a LoRA adapter of PEFT or Trireme"},
           {{"load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant",
             "quantization_bit"},
            "quantized weights are not built; --offload_params, --offload_optimizer and --zero 3 make the "
            "full ones fit"},
           {{"dataset_text_field"}, "--text_field is the field of .jsonl documents"},
           {{"packing_strategy", "eval_packing", "padding_free", "sample_packing", "neat_packing"},
            "--packing documents (the default) and best_fit (whole documents) pack without attention "
            "between documents; concat lets it cross them, none packs nothing. TRL's bfd_split is --packing "
            "best_fit; its bfd is that with --long_documents truncate"},
           {{"excess_length_strategy"},
            "--long_documents cut, truncate or skip, with --packing best_fit or none"},
           {{"completion_only_loss", "assistant_only_loss", "train_on_inputs", "mask_prompt"},
            "the data says it: of lines with prompt and completion, and of chats (python -m trireme.chats), "
            "only the answers are targets; of lines with text every token is"},
           {{"chat_template_path", "chat_template", "template", "messages"},
            "python -m trireme.chats makes a tokenized set of conversations by the tokenizer's chat "
            "template, or a file's, and the trained model gets it"},
           {{"loss_type"},
            "not needed for nll, which is the loss here; dft and losses of preferences are not built: of the "
            "latter DPOTrainer over ranks does them (docs/huggingface.md)"},
           {{"beta", "rpo_alpha"},
            "losses of preferences and of reinforcement learning are not built: DPOTrainer over ranks does "
            "the former (docs/huggingface.md)"},
           {{"activation_offloading"}, "--offload_activations cpu"},
           {{"eos_token"},
            "the token behind a text is what tokenizer_config.json, config.json or generation_config.json of "
            "the model says, in this order; the tokens in which the answers of chats end become part of "
            "eos_token_id of generation_config.json by themselves"},
           {{"pad_token"}, "config.json's pad_token_id, else its eos_token_id, else 0"},
       }},

      {"DeepSpeed, FSDP, accelerate",
       {
           {{"ds_config", "use_deepspeed", "zero_config", "deepspeed_config_file"},
            "--deepspeed ds_config.json; start ranks with trireme launch"},
           {{"zero_stage", "use_distributed_optimizer"},
            "--zero 1 shards the optimizer's state, 2 also gradients, 3 also parameters"},
           {{"offload_param", "offload_param_device", "cpu_offload_params"},
            "--offload_params cpu or disk, with --zero 3"},
           {{"offload_optimizer_device", "cpu_offload", "optimizer_cpu_offload"},
            "--offload_optimizer cpu or disk"},
           {{"nvme_path", "offload_folder"}, "--offload_dir"},
           {{"sequence_parallel_size", "sequence_parallel_degree", "ulysses_degree",
             "ulysses_sequence_parallel_size", "sp_size", "sp_degree"},
            "--sp N shares a sequence over N ranks, by Ulysses and where heads run out a ring; --ulysses and "
            "--ring say it by hand"},
           {{"gradient_clipping", "clip_grad"}, "--max_grad_norm"},
           {{"fsdp", "use_fsdp", "fsdp_config", "fsdp_sharding_strategy",
             "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "fsdp_auto_wrap_policy"},
            "--zero 3 shards parameters, gradients and optimizer state over all ranks, layer by layer"},
           {{"accelerator_config", "parallelism_config", "multi_gpu"},
            "not needed: --sp, --ulysses, --ring and --zero say how ranks share the work"},
           {{"include", "exclude", "hostfile", "num_gpus", "num_nodes", "ssh_port", "launcher_args"},
            "of trireme launch, before its --, as DeepSpeed's launcher has them: trireme launch --hostfile "
            "FILE --include host1:0,1@host2 -- train ...; --num_gpus counts the GPUs of each machine"},
           {{"launcher", "force_multi", "no_ssh", "no_ssh_check"},
            "not needed: trireme launch --hostfile FILE uses ssh for every host but this one"},
           {{"gpu_ids"}, "trireme launch --include localhost:0,1 -- train ..., or CUDA_VISIBLE_DEVICES"},
           {{"num_processes", "nproc", "num_gpus_per_node", "nproc_per_node"},
            "trireme launch --nproc_per_node N -- train ..."},
           {{"num_machines", "nnodes"},
            "trireme launch --hostfile FILE -- train ..., or on each machine trireme launch --nnodes N "
            "--node_rank I --master_addr HOST --master_port PORT -- train ..."},
           {{"machine_rank", "node_rank"}, "trireme launch --node_rank I ..."},
           {{"main_process_ip", "main_process_port", "master_addr", "master_port"},
            "trireme launch --master_addr HOST --master_port PORT ..."},
       }},

      {"torchrun and other launchers",
       {
           {{"standalone"}, "not needed: trireme launch on one machine finds a free port by itself"},
           {{"rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"},
            "trireme launch --master_addr HOST --master_port PORT on every machine"},
           {{"max_restarts"}, "trireme launch --max_restarts N ..."},
           {{"monitor_interval", "start_method", "role", "module", "no_python", "local_addr"},
            "not needed: trireme launch starts this program and hears of a rank's end at once"},
       }},

      {"Megatron-LM",
       {
           {{"expert_model_parallel_size", "expert_tensor_parallel_size", "ep_size"},
            "experts are not spread over ranks: each rank computes those of its tokens, and --zero 3 shards "
            "their weights"},
           {{"tensor_model_parallel_size", "pipeline_model_parallel_size",
             "num_layers_per_virtual_pipeline_stage", "tp_size", "pp_size"},
            "tensor and pipeline parallelism are not built: --sp shares sequences, --zero 3 shards the "
            "model"},
           {{"context_parallel_size", "cp_size", "cp_comm_type", "sequence_parallel"},
            "--sp N shares a sequence over N ranks; --ring N or --ulysses N say how"},
           {{"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
             "kv_channels", "vocab_size", "swiglu", "normalization", "position_embedding_type",
             "use_rotary_position_embeddings", "untie_embeddings_and_output_weights"},
            "the model is what its config.json says; trireme init --preset NAME --set key=value makes one"},
           {{"seq_length", "seq_len", "sequence_length"},
            "--max_seq_length N; of trireme train also --context_stages, for several lengths"},
           {{"micro_batch_size"}, "--per_device_train_batch_size"},
           {{"global_batch_size"},
            "the samples of a step are --per_device_train_batch_size x --gradient_accumulation_steps x the "
            "groups of ranks that share a sample"},
           {{"train_iters", "train_samples", "max_iters"}, "--max_steps"},
           {{"lr_decay_style"}, "--lr_scheduler_type"},
           {{"lr_wsd_decay_iters", "lr_wsd_decay_style"},
            R"(--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs '{"num_decay_steps": 100}')"},
           {{"lr_warmup_fraction"}, "--warmup_ratio"},
           {{"lr_warmup_iters", "lr_warmup_samples", "warmup"}, "--warmup_steps"},
           {{"recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_activations",
             "checkpoint_activations", "activation_checkpointing"},
            "--recompute auto|none|keep_attention|full, with --keep_fraction, --keep_qkv_fraction, "
            "--keep_mlp_fraction and --checkpoint_every"},
           {{"data_path", "train_data_path"},
            "--train_file takes the PREFIX of PREFIX.bin and PREFIX.idx; trireme mix makes one set of "
            "several, each with a weight"},
           {{"mix_strategy", "interleave_probs", "dataset_mixer", "data_mix"},
            "trireme mix --set A:0.7 --set B:0.3 makes one set of several, each with its share of the "
            "tokens"},
           {{"split"}, "--validation_split_percentage"},
           {{"tokenizer_type", "tokenizer_model", "vocab_file", "merge_file"},
            "--tokenizer of trireme tokenize is a folder with tokenizer.json, the file, or org/name"},
           {{"json_keys", "json_key"}, "trireme tokenize: --field"},
           {{"output_prefix"}, "trireme tokenize: --output PREFIX"},
           {{"append_eod"}, "always so, unless --no_append_eos is given"},
           {{"workers"}, "trireme tokenize: --threads N; not given, all cores"},
           {{"save", "load"},
            "--output_dir holds the checkpoints; --resume_from_checkpoint true goes on from the newest"},
           {{"save_interval"}, "--save_steps"},
           {{"eval_interval", "eval_iters"}, "--eval_steps and --max_eval_samples"},
           {{"log_interval"}, "--logging_steps"},
           {{"tensorboard_dir"}, "--logging_dir"},
           {{"distributed_timeout_minutes", "timeout"}, "--ddp_timeout SECONDS"},
       }},
  };
  return all;
}

const std::vector<ForeignValues>& foreign_values() {
  static const std::vector<ForeignValues> all{
      {{"save_steps", "eval_steps", "logging_steps"}, {}, "a share of the run is not built: give steps"},
      {{"optim"},
       {"adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit", "paged_adamw",
        "paged_adamw_8bit", "paged_adamw_32bit", "adafactor"},
       cat("not built: ", kOptimizers)},
      {{"report_to"},
       {"wandb", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "trackio"},
       cat("not built: ", kMetrics)},
  };
  return all;
}

std::optional<std::string> foreign_flag_answer(const std::string& name) {
  for (const ForeignProgram& program : foreign_programs())
    for (const ForeignFlags& flags : program.flags)
      if (contains(flags.names, name)) return flags.answer;
  return std::nullopt;
}

void refuse_foreign_value(const std::string& option, const std::string& value) {
  for (const ForeignValues& each : foreign_values())
    if (contains(each.options, option) &&
        (each.values.empty() ? is_share(value) : contains(each.values, value)))
      throw ConfigError(cat("--", option, " is '", value, "': ", each.answer));
}

}  // namespace trireme
