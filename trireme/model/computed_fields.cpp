#include "trireme/model/computed_fields.h"

#include "trireme/model/model_family.h"

namespace trireme {
namespace {

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json();
}

// `of`: whose rotary embedding, before each name.
Json rope_fields(const RopeConfig& rope, const std::string& of) {
  Json fields = {{of + "rope_theta", rope.theta}, {of + "rope_type", name_of(rope.kind)}};
  if (rope.query_scaling)
    fields.update({{of + "rope query scaling beta", rope.query_scaling->beta},
                   {of + "rope query scaling positions", rope.query_scaling->original_positions}});
  if (rope.kind == RopeKind::standard) return fields;
  if (rope.kind == RopeKind::proportional) fields[of + "rope partial_rotary_factor"] = rope.turning_share;
  fields.update({{of + "rope factor", rope.factor},
                 {of + "rope original_max_position_embeddings", rope.original_max_position_embeddings},
                 {of + "rope beta_fast", rope.beta_fast},
                 {of + "rope beta_slow", rope.beta_slow},
                 {of + "rope attention_factor", number_or_null(rope.attention_factor)},
                 {of + "rope mscale", number_or_null(rope.mscale)},
                 {of + "rope mscale_all_dim", number_or_null(rope.mscale_all_dim)},
                 {of + "rope truncate", rope.truncate},
                 {of + "rope low_freq_factor", rope.low_freq_factor},
                 {of + "rope high_freq_factor", rope.high_freq_factor}});
  return fields;
}

}  // namespace

Json computed_fields(const ModelConfig& config) {
  Json fields = {
      {"model_type", config.raw.value("model_type", "")},
      {"pad_token_id", config.pad_token_id ? Json(*config.pad_token_id) : Json()},  // its row is not trained
      {"type_vocab_size", config.type_vocab_size},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"qkv_bias", config.qkv_bias},
      {"output_bias", config.output_bias},
      {"mlp_bias", config.mlp_bias},
      {"qk_norm", config.qk_norm},
      {"sliding_window", config.layer_window}};
  if (config.num_experts > 0)
    fields.update({{"num_experts", config.num_experts},
                   {"num_experts_per_tok", config.experts_per_token},
                   {"norm_topk_prob", config.expert_weights_sum_to_one},
                   {"shared_expert_intermediate_size", config.shared_intermediate_size}});
  if (config.full_heads)
    fields.update({{"global_head_dim", config.full_heads->width},
                   {"num_global_key_value_heads", config.full_heads->key_value},
                   {"attention_k_eq_v", config.full_heads->keys_are_values}});
  if (config.layer_input_width > 0)
    fields.update({{"hidden_size_per_layer_input", config.layer_input_width},
                   {"vocab_size_per_layer_input", config.layer_input_vocab}});
  if (config.key_sharing_layers > 0)
    fields.update({{"num_kv_shared_layers", config.key_sharing_layers},
                   {"use_double_wide_mlp", config.sharing_intermediate_size != config.intermediate_size}});
  if (config.delta_net) {
    const DeltaHeads& heads = config.delta_net->heads;
    fields.update({{"linear_num_key_heads", heads.key},
                   {"linear_num_value_heads", heads.value},
                   {"linear_key_head_dim", heads.key_width},
                   {"linear_value_head_dim", heads.value_width},
                   {"linear_conv_kernel_dim", config.delta_net->taps},
                   {"layers with a DeltaNet", config.delta_layers}});
  }
  if (config.rope.kind != RopeKind::proportional && config.rope.turning_share < 1)
    fields["partial_rotary_factor"] = config.rope.turning_share;
  if (config.logit_cap > 0) fields["final_logit_softcapping"] = config.logit_cap;
  if (config.score_cap > 0) fields["attn_logit_softcapping"] = config.score_cap;
  for (const auto& [name, size] : config.sizes()) fields[name] = size;
  fields[config.family->norm_eps_key] = config.norm_eps;
  if (config.query_pre_attn_scalar) fields["query_pre_attn_scalar"] = *config.query_pre_attn_scalar;
  if (config.rotates) fields.update(rope_fields(config.rope, ""));
  if (config.window_rope) fields.update(rope_fields(*config.window_rope, "sliding layers' "));
  return fields;
}

std::optional<FieldDifference> difference_beside_positions(const ModelConfig& first,
                                                           const ModelConfig& second) {
  for (const FieldDifference& differs : field_differences(computed_fields(first), computed_fields(second)))
    if (differs.field.find("rope") == std::string::npos && differs.field != "max_position_embeddings")
      return differs;
  return std::nullopt;
}

}  // namespace trireme
