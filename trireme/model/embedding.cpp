#include "trireme/model/embedding.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

class WordEmbedding final : public Embedding {
 public:
  explicit WordEmbedding(const ModelConfig& config)
      : padding_(config.pad_token_id), scale_(config.embedding_scale) {}

  void forward(const UnitWeights& weights, const EmbeddedTokens& embedded, at::Tensor x_TM) const override {
    const at::Tensor& words = weights[kWords];
    if (x_TM.scalar_type() == words.scalar_type())
      at::index_select_out(x_TM, words, 0, embedded.tokens);
    else
      x_TM.copy_(words.index_select(0, embedded.tokens));
    if (scale_ != 1) x_TM.mul_(scale_in(x_TM.scalar_type(), scale_));
  }
  void backward(const UnitWeights&, UnitGradients& gradients, const EmbeddedTokens& embedded,
                const at::Tensor& dx_TM) const override {
    if (scale_ == 1) return add_word_gradients(gradients.to_add(kWords), padding_, embedded.tokens, dx_TM);
    const at::Tensor scaled =
        dx_TM.to(gradients.to_add(kWords).scalar_type()).mul(scale_in(dx_TM.scalar_type(), scale_));
    add_word_gradients(gradients.to_add(kWords), padding_, embedded.tokens, scaled);
  }

 private:
  std::optional<int64_t> padding_;
  double scale_;
};

}  // namespace

std::unique_ptr<Embedding> make_word_embedding(const ModelConfig& config) {
  return std::make_unique<WordEmbedding>(config);
}

double scale_in(at::ScalarType dtype, double scale) {
  return at::scalar_tensor(scale, at::kFloat).to(dtype).item<double>();
}

void add_word_gradients(const at::Tensor& dwords_VM, std::optional<int64_t> padding, const at::Tensor& tokens,
                        const at::Tensor& dx_TM) {
  // The padding token's row is put back: to leave its tokens out, the host would have to wait for their
  // number.
  at::Tensor row, before;
  if (padding) {
    row = dwords_VM.select(0, *padding);
    before = row.clone();
  }
  dwords_VM.index_add_(0, tokens, dx_TM.to(dwords_VM.scalar_type()));
  if (padding) row.copy_(before);
}

void check_positions(const ModelConfig& config, int64_t longest_document_tokens) {
  if (config.rotates || longest_document_tokens <= config.max_position_embeddings) return;
  throw ConfigError(cat("a document of ", longest_document_tokens,
                        " tokens is longer than max_position_embeddings ", config.max_position_embeddings,
                        " of the model's config.json, which has no embedding for the positions beyond; use a "
                        "shorter --max_seq_length, or a model with more positions"));
}

}  // namespace trireme
