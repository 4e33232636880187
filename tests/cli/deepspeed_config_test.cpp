// Every key that DeepSpeed reads is obeyed, named as without meaning, or refused; none is lost.
#include "trireme/cli/deepspeed_config.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/deepspeed_keys.h"
#include "trireme/cli/train.h"

#include "tests/support/error_message.h"

namespace trireme::deepspeed_config_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Json values_of(const std::string& text) {
  Json values = Json::object();
  const DeepSpeedConfig config = read_deepspeed_config(Json::parse(text), "ds.json");
  for (const auto* all : {&config.values, &config.defaults})
    for (const GivenValue& value : *all) values[value.option] = value.value;
  return values;
}

std::string refusal(const std::string& text) {
  return testing::message_of<ConfigError>([&] { read_deepspeed_config(Json::parse(text), "ds.json"); });
}

std::string notes(const std::string& text) {
  std::string all;
  for (const std::string& line : notes_of(read_deepspeed_config(Json::parse(text), "ds.json"), "ds.json"))
    all += line + "\n";
  return all;
}

// The fields of DeepSpeed's own classes (zero/config.py, zero/offload_config.py, precision_config.py,
// monitor/config.py, activation_checkpointing/config.py) and the names in runtime/constants.py.
const std::map<std::string, std::string> kKeysOfDeepSpeed{
    {"",
     "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
     "managed_gradient_accumulation "
     "sparse_gradients communication_data_type seq_parallel_communication_data_type prescale_gradients "
     "gradient_predivide_factor gradient_allreduce_op disable_allgather dump_state gradient_clipping "
     "graph_harvesting vocabulary_size wall_clock_breakdown memory_breakdown dataloader_drop_last "
     "use_data_before_expert_parallelism log_level steps_per_print zero_allow_untested_optimizer "
     "zero_force_ds_cpu_optimizer sequence_parallel_size data_parallel_size"},
    {"zero_optimization.",
     "stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce "
     "allgather_partitions allgather_bucket_size overlap_comm load_from_fp32_weights elastic_checkpoint "
     "zenflow sub_group_size cpu_offload_param cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size "
     "stage3_prefetch_bucket_size param_persistence_threshold stage3_param_persistence_threshold "
     "model_persistence_threshold stage3_model_persistence_threshold max_live_parameters "
     "stage3_max_live_parameters max_reuse_distance stage3_max_reuse_distance "
     "gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save "
     "module_granularity_threshold stage3_module_granularity_threshold use_all_reduce_for_fetch_params "
     "stage3_use_all_reduce_for_fetch_params allgather_sequential stage3_allgather_sequential "
     "stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1 round_robin_gradients "
     "zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights "
     "zero_quantized_gradients zeropp_loco_param mics_shard_size mics_hierarchical_params_gather "
     "memory_efficient_linear pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings "
     "enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module.classes"},
    {"zero_optimization.offload_param.", "device nvme_path buffer_count buffer_size max_in_cpu pin_memory"},
    {"zero_optimization.offload_optimizer.",
     "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio super_offload "
     "cpuadam_cores_perc"},
    {"fp16.",
     "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis "
     "min_loss_scale fp16_master_weights_and_grads"},
    {"bf16.",
     "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"},
    {"activation_checkpointing.",
     "partition_activations number_checkpoints contiguous_memory_optimization "
     "synchronize_checkpoint_boundary profile cpu_checkpointing"},
    {"optimizer.", "type legacy_fusion"},
    {"optimizer.params.",
     "lr betas eps weight_decay torch_adam adam_w_mode bias_correction amsgrad momentum"},
    {"scheduler.", "type"},
    {"scheduler.params.",
     "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type total_num_steps warmup_min_ratio "
     "cos_min_ratio last_batch_iteration"},
    {"tensorboard.", "enabled output_path job_name"},
    {"wandb.", "enabled group team project"},
    {"csv_monitor.", "enabled output_path job_name"},
    {"comet.",
     "enabled samples_log_interval project workspace api_key experiment_name experiment_key online mode"},
    {"flops_profiler.",
     "enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file"},
    {"comms_logger.", "enabled verbose prof_all prof_ops debug"},
    {"aio.", "block_size queue_depth thread_count single_submit overlap_events"},
    {"checkpoint.",
     "tag_validation load_universal use_node_local_storage parallel_write.pipeline_stage writer"},
    {"data_types.", "grad_accum_dtype param_dtype buffer_dtype"},
    {"amp.", "enabled opt_level"},
    {"torch_autocast.", "enabled dtype lower_precision_safe_modules"},
    {"sparse_attention.", "mode block num_local_blocks"},
    {"sequence_parallelism.", "enabled degree sequence_parallel_type"},
};

TEST(DeepSpeedConfig, has_a_row_for_every_key_of_deepspeed) {
  for (const auto& [block, names] : kKeysOfDeepSpeed) {
    std::istringstream words(names);
    for (std::string name; words >> name;)
      EXPECT_NE(find_deepspeed_key(block + name), nullptr) << block << name;
  }
}

TEST(DeepSpeedConfig, rows_are_there_once_and_name_options_that_train_has) {
  const std::vector<std::string> names = Declared<TrainFlags>("train").parser.names();
  std::set<std::string> met;
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    EXPECT_TRUE(met.insert(key.path).second) << key.path << " twice";
    if (key.use == DeepSpeedUse::option) {
      EXPECT_EQ(std::count(names.begin(), names.end(), key.option), 1) << key.path << ": --" << key.option;
    } else {
      EXPECT_FALSE(key.answer.empty()) << key.path;
    }
    EXPECT_FALSE(key.answer.ends_with(".")) << key.path;
  }
}

// A value of each type that a key may have, so that the whole table is read.
TEST(DeepSpeedConfig, every_key_is_obeyed_told_or_refused_and_none_is_lost) {
  const std::map<DeepSpeedType, Json> samples{
      {DeepSpeedType::boolean, true},       {DeepSpeedType::whole, 2},
      {DeepSpeedType::number, 0.5},         {DeepSpeedType::text, "x"},
      {DeepSpeedType::two_numbers, {0, 1}}, {DeepSpeedType::anything, 5}};
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    if (key.use == DeepSpeedUse::together) continue;  // below, by name
    Json value = key.values.empty() ? samples.at(key.type) : key.values[0].deepspeed;
    if (key.use == DeepSpeedUse::refused && value == key.harmless) value = false;
    std::string path = key.path;
    if (path.ends_with("*")) path.replace(path.size() - 1, 1, "some_key");
    Json document = value;
    for (std::string rest = path; !rest.empty();) {
      const size_t dot = rest.rfind('.');
      document = Json{{rest.substr(dot + 1), document}};
      rest = dot == std::string::npos ? "" : rest.substr(0, dot);
    }
    if (path.starts_with("scheduler.params.")) document["scheduler"]["type"] = "WarmupCosineLR";
    SCOPED_TRACE(document.dump());
    if (key.use == DeepSpeedUse::refused) {
      EXPECT_THAT(refusal(document.dump()), AllOf(HasSubstr("\"" + path + "\""), HasSubstr(key.answer)));
      continue;
    }
    const DeepSpeedConfig config = read_deepspeed_config(document, "ds.json");
    if (key.use == DeepSpeedUse::nothing) {
      EXPECT_THAT(notes(document.dump()), AllOf(HasSubstr(path), HasSubstr(key.answer)));
    } else {
      const auto given =
          std::find_if(config.values.begin(), config.values.end(), [&](const GivenValue& each) {
            return each.option == key.option && each.source == "ds.json: " + path;
          });
      ASSERT_NE(given, config.values.end());
      EXPECT_EQ(given->value, key.values.empty() ? value : key.values[0].ours);
    }
  }
}

TEST(DeepSpeedConfig, of_a_guide_becomes_options) {
  EXPECT_EQ(values_of(R"({
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "sequence_parallelism": {"enabled": true, "degree": 8, "sequence_parallel_type": "ulysses"},
    "fp16": {"enabled": true}, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0})"),
            (Json{{"per_device_train_batch_size", 1},
                  {"gradient_accumulation_steps", 4},
                  {"logging_steps", 10},
                  {"zero", 3},
                  {"offload_optimizer", "cpu"},
                  {"offload_params", "cpu"},
                  {"ulysses", 8},
                  {"fp16", true},
                  {"max_grad_norm", 1.0}}));
}

TEST(DeepSpeedConfig, values_that_become_options_together) {
  EXPECT_EQ(values_of(R"({"sequence_parallelism": {"enabled": true, "degree": 4}})"), (Json{{"sp", 4}}));
  EXPECT_EQ(values_of(R"({"sequence_parallelism": {"degree": 4, "sequence_parallel_type": "ring"}})"),
            (Json{{"ring", 4}}));
  EXPECT_EQ(values_of(R"({"sequence_parallelism": {"enabled": false, "degree": 4}})"), (Json{{"sp", 1}}));
  for (const char* half : {R"("enabled": true)", R"("sequence_parallel_type": "ulysses")"})
    EXPECT_THAT(refusal(cat(R"({"sequence_parallelism": {)", half, "}}")),
                HasSubstr("sequence_parallelism.degree"));
  EXPECT_EQ(values_of(R"({"fp32_allreduce": false})"), Json::object());
  EXPECT_EQ(values_of(R"({"fp16": {"initial_scale_power": 12, "loss_scale_window": 5e2}})"),
            (Json{{"initial_loss_scale", 4096.0}, {"loss_scale_window", 500}}));
  EXPECT_EQ(
      values_of(R"({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.8, 0.95]}}})"),
      (Json{{"optim", "adamw_torch"}, {"learning_rate", 1e-4}, {"adam_beta1", 0.8}, {"adam_beta2", 0.95}}));
  EXPECT_EQ(values_of(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0}}})"),
            (Json{{"optim", "sgd"}}));
  EXPECT_EQ(values_of(R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/d"}}})"),
            (Json{{"offload_params", "disk"}, {"offload_dir", "/d"}}));
  EXPECT_EQ(values_of(R"({"tensorboard": {"enabled": true, "output_path": "/logs", "job_name": "a"}})"),
            (Json{{"report_to", "tensorboard"}, {"logging_dir", "/logs/a"}}));
}

TEST(DeepSpeedConfig, schedules_become_those_of_the_trainer) {
  const auto scheduler = [](const std::string& type, const std::string& params) {
    return cat(R"({"scheduler": {"type": ")", type, R"(", "params": {)", params, "}}}");
  };
  EXPECT_EQ(values_of(scheduler("WarmupLR",
                                R"("warmup_max_lr": 2e-5, "warmup_num_steps": 50, "warmup_type": "linear")")),
            (Json{{"lr_scheduler_type", "constant_with_warmup"},
                  {"learning_rate", 2e-5},
                  {"warmup_steps", 50},
                  {"warmup_type", "linear"}}));
  EXPECT_EQ(values_of(scheduler("WarmupDecayLR", R"("warmup_max_lr": 2e-5, "total_num_steps": 400)")),
            (Json{{"lr_scheduler_type", "linear"},
                  {"learning_rate", 2e-5},
                  {"warmup_steps", 1000},
                  {"warmup_type", "log"},
                  {"max_steps", 400}}));
  EXPECT_EQ(
      values_of(scheduler("WarmupCosineLR",
                          R"("warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "log")")),
      (Json{{"lr_scheduler_type", "cosine_with_min_lr"},
            {"lr_scheduler_kwargs", R"({"min_lr_rate":0.0001})"},
            {"warmup_type", "log"}}));
  EXPECT_EQ(values_of(scheduler("WarmupCosineLR", R"("cos_min_ratio": 0.1)"))["lr_scheduler_kwargs"],
            R"({"min_lr_rate":0.1})");
  EXPECT_THAT(refusal(scheduler("WarmupDecayLR", R"("warmup_num_steps": 5)")),
              AllOf(HasSubstr("0.001"), HasSubstr("warmup_max_lr")));
  EXPECT_THAT(refusal(scheduler("OneCycle", R"("cycle_min_lr": 1)")),
              AllOf(HasSubstr("\"scheduler.type\" is \"OneCycle\""), HasSubstr("not built")));
  EXPECT_THAT(refusal(scheduler("WarmupLR", R"("warmup_min_lr": 1e-6)")), HasSubstr("begins at 0"));
  EXPECT_THAT(refusal(scheduler("WarmupLR", R"("cos_min_ratio": 0.1)")), HasSubstr("WarmupCosineLR"));
  EXPECT_THAT(refusal(scheduler("WarmupLR", R"("total_num_steps": 100)")), HasSubstr("--max_steps"));
  EXPECT_THAT(refusal(R"({"scheduler": {"params": {"warmup_num_steps": 5}}})"), HasSubstr("scheduler.type"));
  EXPECT_THAT(refusal(scheduler("WarmupLR", R"("warmup_type": "square")")),
              HasSubstr(R"(expected "linear" or "log")"));
}

TEST(DeepSpeedConfig, adam_with_l2_decay_is_refused_and_adamw_is_what_adam_means) {
  const auto adam = [](const std::string& type, const std::string& params) {
    return cat(R"({"optimizer": {"type": ")", type, R"(", "params": {)", params, "}}}");
  };
  EXPECT_EQ(values_of(adam("Adam", ""))["optim"], "adamw_torch");
  EXPECT_EQ(values_of(adam("AdamW", R"("adam_w_mode": false, "weight_decay": 0.1)"))["optim"], "adamw_torch");
  EXPECT_THAT(refusal(adam("Adam", R"("adam_w_mode": false, "weight_decay": 0.1)")), HasSubstr("L2"));
  EXPECT_THAT(refusal(adam("Adam", R"("adam_w_mode": false)")), HasSubstr("weight_decay 0"));
  EXPECT_EQ(values_of(adam("Adam", R"("adam_w_mode": false, "weight_decay": 0)"))["optim"], "adamw_torch");
  EXPECT_THAT(refusal(adam("Lamb", "")), AllOf(HasSubstr("\"Lamb\""), HasSubstr("AdamW, sgd")));
}

TEST(DeepSpeedConfig, auto_and_null_take_what_is_given_elsewhere) {
  EXPECT_EQ(
      values_of(R"({"train_batch_size": "auto", "zero_optimization": {"stage": "auto", "offload_param": null},
                          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}})"),
      (Json{{"optim", "adamw_torch"}}));
}

TEST(DeepSpeedConfig, unknown_keys_are_refused_with_the_nearest_known_one) {
  EXPECT_THAT(refusal(R"({"zero_optimisation": {"stage": 3}})"),
              HasSubstr("did you mean \"zero_optimization\"?"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage3_prefetch_bucket": 5}})"),
              HasSubstr("did you mean \"zero_optimization.stage3_prefetch_bucket_size\"?"));
  EXPECT_THAT(refusal(R"({"offload_optimizer": {"device": "cpu"}})"),
              HasSubstr("did you mean \"zero_optimization.offload_optimizer\"?"));
  EXPECT_THAT(refusal(R"({"overlap_comm": true})"),
              HasSubstr("did you mean \"zero_optimization.overlap_comm\"?"));
  EXPECT_THAT(refusal(R"({"frobnicate": null})"), HasSubstr("docs/deepspeed-config.md"));
  EXPECT_THAT(refusal(R"({"zero_optimization.stage": 3})"),
              HasSubstr("objects {...} of keys in one another"));
}

TEST(DeepSpeedConfig, a_value_of_a_wrong_type_is_refused_by_the_path_of_its_key) {
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": "3"}})"),
              AllOf(HasSubstr("\"zero_optimization.stage\" is \"3\""), HasSubstr("expected a whole number")));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": 1.5}})"), HasSubstr("expected a whole number"));
  EXPECT_THAT(refusal(R"({"zero_optimization": true})"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": 1}})"), HasSubstr("expected true or false"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}})"),
              HasSubstr("expected a list of two numbers"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"offload_param": {"device": "disk"}}})"),
              HasSubstr("expected \"none\" or \"cpu\" or \"nvme\""));
  EXPECT_THAT(refusal(R"({"train_batch_size": 0})"), HasSubstr("expected 1 or more"));
}

}  // namespace
}  // namespace trireme::deepspeed_config_test
