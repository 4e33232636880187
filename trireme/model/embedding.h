// The beginning of the model, on a tile of T tokens:
//
//   decoders   tokens -> words_VM -> x_TM
//   BERT       tokens -> words_VM + positions_PM + token types' first row -> layer norm -> x_TM
//
// Sums and gradients are fp32. BERT's backward looks the rows up again instead of keeping them: a unit's
// parameters more to gather, a layer input less to keep.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "trireme/model/parameter_layout.h"

namespace trireme {

struct EmbeddingTensors {
  at::Tensor words;  // [V, M]
  // Of BERT; undefined for decoders.
  at::Tensor positions = {};    // [max_position_embeddings, M]
  at::Tensor token_types = {};  // [type_vocab_size, M]
  at::Tensor norm = {};         // [M]
  at::Tensor norm_bias = {};    // [M]
};
// Of the embedding unit's flat values or gradient.
EmbeddingTensors embedding_tensors(const at::Tensor& flat, const UnitSpec& unit, const ModelConfig& config);

// Of each token on the weights' device, int64.
struct EmbeddedTokens {
  at::Tensor tokens;     // [T]
  at::Tensor positions;  // [T], within the token's document; decoders do not read them
  EmbeddedTokens rows(int64_t begin, int64_t count) const {
    return {tokens.narrow(0, begin, count), positions.narrow(0, begin, count)};
  }
};

// -> x [T, M] (written).
void embedding_forward(const EmbeddingTensors& weights, double eps, const EmbeddedTokens& embedded,
                       at::Tensor x_TM);

// dx [T, M] -> added to the gradients (fp32). The word row of `padding` gets nothing: as in Hugging Face,
// looking the padding token up teaches it nothing. `weights` are read where positions are.
void embedding_backward(const EmbeddingTensors& weights, EmbeddingTensors& gradients, double eps,
                        std::optional<int64_t> padding, const EmbeddedTokens& embedded,
                        const at::Tensor& dx_TM);

// ConfigError where a document of so many tokens has positions that the model has no embedding for.
void check_positions(const ModelConfig& config, int64_t longest_document_tokens);

}  // namespace trireme
