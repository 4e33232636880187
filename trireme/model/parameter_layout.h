// The model as a list of units (embedding, layers, final norm + head), each one flat buffer of parameters.
// Projections that read the same input lie side by side (q|k|v, gate|up), so that one matmul serves them, and
// a flat buffer is what stores shard. The names are Hugging Face's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/model_config.h"

namespace trireme {

struct ParameterSpec {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // as in the checkpoint
  int64_t offset = 0;          // elements from the start of the unit's flat buffer
  int64_t elements = 0;
  bool decays = true;  // weight decay skips norms and biases
  // In exact arithmetic the gradient is zero, and what is computed is rounding: the bias of k without rotary
  // adds the same to all scores of a query, which softmax does not see.
  bool gradient_vanishes = false;
};

struct UnitSpec {
  std::string name;  // "embedding", "layer.0", "head"
  std::vector<ParameterSpec> parameters;
  int64_t elements = 0;  // of the flat buffer, padding included (parts start at multiples of 16 elements)

  const ParameterSpec& find(const std::string& suffix) const;  // by the name's end; InternalError when absent
  bool has(const std::string& suffix) const;
};

// A second name under which a file may hold a parameter.
struct TiedName {
  std::string name;
  std::string parameter;  // of a unit
};

struct ModelLayout {
  std::vector<UnitSpec> units;  // [0] embedding, [1..L] layers, [L+1] head
  bool tied = false;            // the head unit then lacks the output matrix and uses the embedding's
  bool embedding_read_backward = false;  // the embedding's backward needs its values, not its gradient alone
  std::vector<TiedName> tied_names;
  // What files of this kind may hold and this model does not have: names begin so.
  std::vector<std::string> unread_prefixes;
  int embedding_unit() const { return 0; }
  int layer_unit(int64_t layer) const { return static_cast<int>(1 + layer); }
  int head_unit() const { return static_cast<int>(units.size()) - 1; }
};

ModelLayout make_model_layout(const ModelConfig& config);

// View of one parameter in its unit's flat buffer (any dtype).
at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec);

// A layer's parameters, or their gradients, as views of the flat buffer. Undefined where the model has none.
struct LayerWeights {
  at::Tensor qkv;        // [(H + 2K) D, M]
  at::Tensor qkv_bias;   // [(H + 2K) D]
  at::Tensor o;          // [M, H D]
  at::Tensor o_bias;     // [M]
  at::Tensor down;       // [M, I]
  at::Tensor down_bias;  // [M]
  // Of decoders (decoder_layer.h).
  at::Tensor input_norm;    // [M]
  at::Tensor q_norm;        // [D]
  at::Tensor k_norm;        // [D]
  at::Tensor post_norm;     // [M]
  at::Tensor gate_up;       // [2 I, M]
  at::Tensor gate_up_bias;  // [2 I]
  // Of encoders (encoder_layer.h).
  at::Tensor attention_norm;       // [M]
  at::Tensor attention_norm_bias;  // [M]
  at::Tensor up;                   // [I, M]
  at::Tensor up_bias;              // [I]
  at::Tensor output_norm;          // [M]
  at::Tensor output_norm_bias;     // [M]
};
LayerWeights layer_weights(const at::Tensor& flat, const UnitSpec& unit, const ModelConfig& config);

}  // namespace trireme
