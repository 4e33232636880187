// The config.json of causal decoders as transformers' own classes read it: what all of Llama's kind share,
// and what differs from kind to kind as data.
#pragma once

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"

namespace trireme {

struct DecoderKind {
  enum class AttentionBias { by_key, none, qkv };
  // Which layers slide: none; all, where sliding_window is set; those of use_sliding_window and
  // max_window_layers, or as layer_types says.
  enum class Windows { none, all_layers, chosen_layers };

  const char* model_type;
  // What transformers assumes where the file is silent.
  int64_t vocab_size, intermediate_size, key_value_heads;  // key_value_heads 0: as many as query heads
  int64_t max_position_embeddings;
  int64_t head_dim;  // 0: hidden_size / num_attention_heads
  bool token_ids;    // bos 1 and eos 2, else none
  bool
      heads_divide_the_width;  // hidden_size must be a multiple of num_attention_heads even beside a head_dim
  AttentionBias attention_bias;
  bool mlp_bias;  // by its key; else there is none
  bool qk_norm;
  Windows windows;
};

ModelConfig parse_decoder_config(const ConfigKeys& keys, const DecoderKind& kind);

}  // namespace trireme
