// Byte-level BPE, the kind of GPT-2, Llama-3 and Qwen: a piece starts as its bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/tokenizer/bpe_merges.h"
#include "trireme/tokenizer/token_model.h"

namespace trireme {

class ByteBpe final : public TokenModel {
 public:
  // Throws as BpeMerges does, and ConfigError for unknown tokens and byte fallback.
  ByteBpe(const Json& model, const std::string& origin);

  void encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const override;

 private:
  void encode_new(std::string_view piece, std::vector<int32_t>& ids) const;

  std::string origin_;
  Vocabulary id_of_bytes_;
  std::array<int32_t, 256> id_of_byte_{};
  BpeMerges merges_;
  bool ignore_merges_;  // true: a piece that is a token becomes that token without merges
};

}  // namespace trireme
