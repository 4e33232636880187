#include "tests/engine/tiny_model.h"

#include <ATen/CPUGeneratorImpl.h>

#include "trireme/model/checkpoint_files.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/make_adapters.h"
#include "trireme/model/unit_weights.h"

namespace trireme::testing {
namespace {

// "norm.weight", "input_layernorm.weight", "q_norm.weight", "LayerNorm.weight".
bool scales_a_norm(const std::string& name) {
  return name.ends_with("norm.weight") || name.ends_with("Norm.weight");
}

}  // namespace

Json tiny_llama_config(int64_t query_heads, int64_t key_value_heads) {
  return Json{{"model_type", "llama"},
              {"architectures", {"LlamaForCausalLM"}},
              {"hidden_size", 8 * query_heads},
              {"intermediate_size", 48},
              {"num_hidden_layers", 2},
              {"num_attention_heads", query_heads},
              {"num_key_value_heads", key_value_heads},
              {"head_dim", 8},
              {"vocab_size", 70},
              {"max_position_embeddings", 512},
              {"rms_norm_eps", 1e-5},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", false},
              {"rope_theta", 10000.0}};
}

Json tiny_gemma3_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_llama_config(query_heads, key_value_heads);
  config.update({{"model_type", "gemma3_text"},
                 {"architectures", {"Gemma3ForCausalLM"}},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"query_pre_attn_scalar", 20},
                 {"sliding_window", 17},
                 {"sliding_window_pattern", 2},
                 {"rope_local_base_freq", 300.0},
                 {"tie_word_embeddings", true},
                 {"pad_token_id", nullptr}});
  config.erase("hidden_act");
  return config;
}

Json tiny_gemma2_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_gemma3_config(query_heads, key_value_heads);
  for (const char* key : {"rope_local_base_freq", "sliding_window_pattern"}) config.erase(key);
  config.update({{"model_type", "gemma2"},
                 {"architectures", {"Gemma2ForCausalLM"}},
                 {"attn_logit_softcapping", 2.0},
                 {"final_logit_softcapping", 5.0}});
  return config;
}

Json tiny_gemma4_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_gemma3_config(query_heads, key_value_heads);
  for (const char* key :
       {"query_pre_attn_scalar", "rope_local_base_freq", "rope_theta", "sliding_window_pattern"})
    config.erase(key);
  config.update({{"model_type", "gemma4_text"},
                 {"architectures", {"Gemma4ForCausalLM"}},
                 {"hidden_size_per_layer_input", 0},
                 {"global_head_dim", 16},
                 {"num_global_key_value_heads", 1},
                 {"attention_k_eq_v", true},
                 {"final_logit_softcapping", 5.0},
                 {"layer_types", {"sliding_attention", "full_attention"}}});
  return config;
}

Json tiny_gemma4_experts_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_gemma4_config(query_heads, key_value_heads);
  config.update(
      {{"enable_moe_block", true}, {"num_experts", 4}, {"top_k_experts", 2}, {"moe_intermediate_size", 24}});
  return config;
}

Json tiny_gemma4_e2b_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_gemma4_config(query_heads, key_value_heads);
  config.update({{"num_hidden_layers", 3},
                 {"num_kv_shared_layers", 1},
                 {"use_double_wide_mlp", true},
                 {"hidden_size_per_layer_input", 16},
                 {"vocab_size_per_layer_input", config["vocab_size"]}});
  const Json types = config["layer_types"];
  config["layer_types"] = {types[1], types[0], types[1]};
  return config;
}

Json tiny_qwen3_5_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_llama_config(query_heads, key_value_heads);
  config.update({{"model_type", "qwen3_5_text"},
                 {"architectures", {"Qwen3_5ForCausalLM"}},
                 {"partial_rotary_factor", 0.5},
                 {"full_attention_interval", 2},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 6},
                 {"linear_value_head_dim", 8}});
  return config;
}

Json tiny_mixture_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_llama_config(query_heads, key_value_heads);
  config.update({{"model_type", "qwen3_moe"},
                 {"architectures", {"Qwen3MoeForCausalLM"}},
                 {"num_experts", 5},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 24},
                 {"norm_topk_prob", true}});
  return config;
}

Json tiny_qwen3_next_config(int64_t query_heads, int64_t key_value_heads) {
  Json config = tiny_qwen3_5_config(query_heads, key_value_heads);
  config.update({{"model_type", "qwen3_next"},
                 {"architectures", {"Qwen3NextForCausalLM"}},
                 {"num_experts", 4},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 24},
                 {"shared_expert_intermediate_size", 40}});
  return config;
}

Json tiny_bert_config(int64_t heads) {
  return Json{{"model_type", "bert"},
              {"architectures", {"BertForMaskedLM"}},
              {"hidden_size", 8 * heads},
              {"intermediate_size", 48},
              {"num_hidden_layers", 2},
              {"num_attention_heads", heads},
              {"vocab_size", 70},
              {"max_position_embeddings", 64},
              {"type_vocab_size", 2},
              {"hidden_dropout_prob", 0.0},
              {"attention_probs_dropout_prob", 0.0},
              {"pad_token_id", 3}};
}

void write_tiny_model(const std::filesystem::path& folder, const Json& config, double spread,
                      const ModelFamilies& families) {
  const ModelConfig parsed = parse_model_config(config, "test config", families);
  const ModelLayout layout = make_model_layout(parsed);
  write_checkpoint(folder, parsed, layout,
                   [&](int unit) {
                     const UnitSpec& spec = layout.units[static_cast<size_t>(unit)];
                     at::Tensor flat = at::zeros({spec.elements});
                     for (const ParameterSpec& parameter : spec.parameters) {
                       auto generator =
                           at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>{}(parameter.name));
                       at::Tensor view = parameter_view(flat, parameter);
                       const bool around_one = scales_a_norm(parameter.name) && !parsed.norms_add_one;
                       view.normal_(around_one ? 1.0 : 0.0, spread, generator);
                     }
                     return flat;
                   },
                   at::kFloat, {});
}

void write_tiny_adapter(const std::filesystem::path& model, const std::filesystem::path& folder,
                        const LoraConfig& lora, double spread) {
  const ModelConfig config = read_model_config(model);
  ModelLayout layout = make_model_layout(config);
  layout.adapters = make_adapters(config, layout, lora, {"test", "test"});
  std::filesystem::create_directories(folder);
  write_adapter(folder, layout, {.config = lora, .model = model.string(), .whole_type = {}}, [&](int number) {
    const UnitSpec& unit = layout.trained()[static_cast<size_t>(number)];
    at::Tensor flat = at::zeros({unit.elements});
    for (const ParameterSpec& parameter : unit.parameters) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>{}(parameter.name));
      const bool around_one = scales_a_norm(parameter.name) && !config.norms_add_one;
      parameter_view(flat, parameter).normal_(around_one ? 1.0 : 0.0, spread, generator);
    }
    return flat;
  });
}

TokenBatch slice_of_batch(int64_t batch, int64_t vocabulary, uint64_t seed, const SampleLayout& layout,
                          int rank, const std::vector<Documents>& documents) {
  const int64_t tokens = layout.tokens;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor ids = at::randint(0, vocabulary, {batch, tokens}, generator, at::kLong);
  at::Tensor targets = at::randint(0, vocabulary, {batch, tokens}, generator, at::kLong);
  targets.masked_fill_(at::rand({batch, tokens}, generator, at::kFloat).lt(0.2), kIgnoredLabel);
  for (size_t sample = 0; sample < documents.size(); ++sample)
    for (const int64_t end : documents[sample].cu_seqlens())
      if (end > 0) targets[static_cast<int64_t>(sample)][end - 1] = kIgnoredLabel;
  TokenBatch result;
  result.layout = layout;
  result.documents = documents;
  std::vector<at::Tensor> ids_here{at::empty({batch, 0}, at::kLong)};  // a rank may hold nothing
  std::vector<at::Tensor> targets_here = ids_here;
  for (const TokenSpan& span : layout.spans(rank)) {
    ids_here.push_back(ids.narrow(1, span.begin, span.size()));
    targets_here.push_back(targets.narrow(1, span.begin, span.size()));
  }
  result.tokens = at::cat(ids_here, 1);
  result.targets = at::cat(targets_here, 1);
  return result;
}

TokenBatch slice_of_batch(int64_t batch, int64_t tokens, int64_t vocabulary, uint64_t seed, int ranks,
                          int rank) {
  return slice_of_batch(batch, vocabulary, seed, SampleLayout{tokens, ranks, 1}, rank);
}

void restore_unit(Engine& engine, int unit, const std::string& state, const at::Tensor& whole) {
  const UnitShare share = engine.unit_share(unit);
  const at::Tensor padded =
      at::constant_pad_nd(whole, {0, std::max<int64_t>(share.begin + share.elements - whole.size(0), 0)});
  engine.restore_unit_share(unit, state, padded.narrow(0, share.begin, share.elements));
}

std::map<std::string, at::Tensor> all_gradients(Engine& engine) {
  std::map<std::string, at::Tensor> gradients;
  const std::vector<UnitSpec>& trained = engine.layout().trained();
  for (size_t unit = 0; unit < trained.size(); ++unit) {
    const at::Tensor whole = engine.unit_gradient(static_cast<int>(unit)).clone();
    for (const ParameterSpec& parameter : trained[unit].parameters)
      gradients[parameter.name] = parameter_view(whole, parameter);
  }
  return gradients;
}

}  // namespace trireme::testing
