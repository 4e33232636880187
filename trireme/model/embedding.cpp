#include "trireme/model/embedding.h"

#include "trireme/base/error.h"
#include "trireme/model/token_ops.h"

namespace trireme {
namespace {

// What goes into the layer norm.
at::Tensor embedded_sum(const EmbeddingTensors& weights, const EmbeddedTokens& embedded) {
  const auto dtype = weights.words.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = weights.words.index_select(0, embedded.tokens).to(dtype);
  sum.add_(weights.token_types.select(0, 0));
  return sum.add_(weights.positions.index_select(0, embedded.positions));
}

}  // namespace

EmbeddingTensors embedding_tensors(const at::Tensor& flat, const UnitSpec& unit, const ModelConfig& config) {
  const auto view = [&](const char* name) { return parameter_view(flat, unit.find(name)); };
  if (config.family != ModelFamily::bert) return {view("embed_tokens.weight")};
  return {view("word_embeddings.weight"), view("position_embeddings.weight"),
          view("token_type_embeddings.weight"), view("LayerNorm.weight"), view("LayerNorm.bias")};
}

void embedding_forward(const EmbeddingTensors& weights, double eps, const EmbeddedTokens& embedded,
                       at::Tensor x_TM) {
  if (weights.positions.defined())
    x_TM.copy_(layer_norm(embedded_sum(weights, embedded), weights.norm, weights.norm_bias, eps,
                          x_TM.scalar_type()));
  else if (x_TM.scalar_type() == weights.words.scalar_type())
    at::index_select_out(x_TM, weights.words, 0, embedded.tokens);
  else
    x_TM.copy_(weights.words.index_select(0, embedded.tokens));
}

void embedding_backward(const EmbeddingTensors& weights, EmbeddingTensors& gradients, double eps,
                        std::optional<int64_t> padding, const EmbeddedTokens& embedded,
                        const at::Tensor& dx_TM) {
  at::Tensor d = dx_TM;
  if (weights.positions.defined()) {
    const at::Tensor sum = embedded_sum(weights, embedded);
    d = layer_norm_backward(dx_TM, sum, weights.norm, eps, sum.scalar_type(), gradients.norm,
                            gradients.norm_bias);
    gradients.positions.index_add_(0, embedded.positions, d);
    gradients.token_types.select(0, 0).add_(d.sum(0));
  }
  // The padding token's row is put back: to leave its tokens out, the host would have to wait for their number.
  at::Tensor row, before;
  if (padding) {
    row = gradients.words.select(0, *padding);
    before = row.clone();
  }
  gradients.words.index_add_(0, embedded.tokens, d.to(gradients.words.scalar_type()));
  if (padding) row.copy_(before);
}

void check_positions(const ModelConfig& config, int64_t longest_document_tokens) {
  if (config.rotates() || longest_document_tokens <= config.max_position_embeddings) return;
  throw ConfigError(cat("a document of ", longest_document_tokens,
                        " tokens is longer than max_position_embeddings ", config.max_position_embeddings,
                        " of the model's config.json, which has no embedding for the positions beyond; use a "
                        "shorter --max_seq_length, or a model with more positions"));
}

}  // namespace trireme
