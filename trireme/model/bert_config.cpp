#include "trireme/model/bert_config.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr double kDefaultDropout = 0.1;

void refuse_unbuilt(const ConfigKeys& keys) {
  keys.refuse_unless_absent({"quantization_config", "compression_config"},
                            "quantized weights cannot be trained; use the unquantized model");
  for (const char* key : {"is_decoder", "add_cross_attention", "is_encoder_decoder"})
    if (keys.boolean(key, false))
      keys.refuse(key, "a bert is trained as an encoder: full attention, without another model's states");
  if (keys.text("hidden_act", "gelu") != "gelu")
    keys.refuse("hidden_act",
                "only gelu, its exact form, is supported for bert; gelu_new and other approximations by tanh "
                "compute another model");
  if (keys.text("position_embedding_type", "absolute") != "absolute")
    keys.refuse("position_embedding_type", "only absolute position embeddings are supported");
  if (!keys.boolean("tie_word_embeddings", true))
    keys.refuse("tie_word_embeddings",
                "a bert whose output matrix is not its word embedding is not supported");

  if (!keys.has("architectures")) return;
  const std::string architecture = keys.first_text("architectures");
  if (architecture != "BertForMaskedLM" && architecture != "BertForPreTraining")
    keys.refuse(
        "architectures",
        "expected [\"BertForMaskedLM\"] (or BertForPreTraining, whose masked-token head is trained): "
        "other kinds lack the head of the masked-token loss; load it as BertForMaskedLM and save it again");
}

int64_t size_of(const ConfigKeys& keys, const char* key, int64_t fallback, int64_t largest) {
  const int64_t value = keys.integer(key, fallback);
  if (value < 1 || value > largest) keys.refuse(key, cat("expected 1 to ", largest));
  return value;
}

}  // namespace

ModelConfig parse_bert_config(const ConfigKeys& keys) {
  refuse_unbuilt(keys);
  constexpr int64_t largest = int64_t{1} << 31;
  ModelConfig config;
  config.family = ModelFamily::bert;
  config.causality = Causality::full;
  config.raw = keys.json();
  // Without the next-sentence head, which is not trained, export writes a model of this kind.
  config.raw["architectures"] = Json::array({"BertForMaskedLM"});

  config.vocab_size = size_of(keys, "vocab_size", 30522, largest);
  config.hidden_size = size_of(keys, "hidden_size", 768, largest);
  config.intermediate_size = size_of(keys, "intermediate_size", 3072, largest);
  config.num_hidden_layers = size_of(keys, "num_hidden_layers", 12, 100'000);
  config.num_attention_heads = size_of(keys, "num_attention_heads", 12, largest);
  config.num_key_value_heads = config.num_attention_heads;
  config.max_position_embeddings = size_of(keys, "max_position_embeddings", 512, largest);
  config.type_vocab_size = size_of(keys, "type_vocab_size", 2, largest);
  if (config.hidden_size % config.num_attention_heads != 0)
    throw ConfigError(cat(keys.origin(), ": hidden_size ", config.hidden_size, " is not a multiple of ",
                          "num_attention_heads ", config.num_attention_heads));
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.layer_norm_eps = keys.number("layer_norm_eps", 1e-12);
  if (!(config.layer_norm_eps > 0 && config.layer_norm_eps < 1))
    keys.refuse("layer_norm_eps", "expected more than 0, less than 1");
  config.initializer_range = keys.number("initializer_range", 0.02);
  if (!(config.initializer_range >= 0 && config.initializer_range <= 1))
    keys.refuse("initializer_range", "expected 0 to 1");

  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"})
    if (const double rate = keys.number(key, kDefaultDropout); rate != 0) config.dropout[key] = rate;
  config.tie_word_embeddings = true;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.layer_window.assign(static_cast<size_t>(config.num_hidden_layers), 0);
  config.bos_token_id = keys.first_integer("bos_token_id", std::nullopt);
  config.eos_token_id = keys.first_integer("eos_token_id", std::nullopt);
  config.pad_token_id = keys.first_integer("pad_token_id", 0);
  return config;
}

}  // namespace trireme
