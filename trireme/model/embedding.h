// The beginning of a model, on a tile of T tokens: tokens -> rows of words_VM -> x_TM. Sums and gradients are
// fp32.
#pragma once

#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme {

// Of each token on the weights' device, int64.
struct EmbeddedTokens {
  at::Tensor tokens;     // [T]
  at::Tensor positions;  // [T], within the token's document; models that rotate do not read them
  EmbeddedTokens rows(int64_t begin, int64_t count) const {
    return {tokens.narrow(0, begin, count), positions.narrow(0, begin, count)};
  }
};

class Embedding {
 public:
  virtual ~Embedding() = default;
  Embedding& operator=(Embedding&&) = delete;

  // -> x [T, M] (written).
  virtual void forward(const UnitWeights& weights, const EmbeddedTokens& embedded, at::Tensor x_TM) const = 0;
  // dx [T, M] -> added to the gradients (fp32). `weights` are empty unless
  // ModelLayout::embedding_read_backward.
  virtual void backward(const UnitWeights& weights, UnitGradients& gradients, const EmbeddedTokens& embedded,
                        const at::Tensor& dx_TM) const = 0;
};

// Rows of words alone, times ModelConfig::embedding_scale, as decoders have it.
std::unique_ptr<Embedding> make_word_embedding(const ModelConfig& config);

// What rows of values in `dtype` are multiplied by for `scale`: rounded to it, as transformers has it; 55.5 in
// bf16 for the root of 3072.
double scale_in(at::ScalarType dtype, double scale);

// dx [T, M] -> added to the tokens' rows of dwords [V, M]. The row of `padding` gets nothing, as in classes
// of Hugging Face that have a padding_idx; nullopt for the others.
void add_word_gradients(const at::Tensor& dwords_VM, std::optional<int64_t> padding, const at::Tensor& tokens,
                        const at::Tensor& dx_TM);

// ConfigError where a document of so many tokens has positions that the model has no embedding for.
void check_positions(const ModelConfig& config, int64_t longest_document_tokens);

}  // namespace trireme
