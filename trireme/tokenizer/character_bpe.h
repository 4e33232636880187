// SentencePiece's BPE, the kind of Llama-2, Mistral and Gemma: a piece starts as its characters. A character
// without a token becomes its bytes' tokens (<0xE4>), or the unknown token.
//
// The piece may be a whole document: these tokenizers split no text. So the text is cut first where two
// neighbouring characters stand side by side in no token: no merge crosses that border, and the ids are those
// of the whole. Most words are cut apart, and words repeat.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/tokenizer/bpe_merges.h"
#include "trireme/tokenizer/token_model.h"

namespace trireme {

class CharacterBpe final : public TokenModel {
 public:
  // Throws as BpeMerges does.
  CharacterBpe(const Json& model, const std::string& origin);

  void encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const override;

 private:
  struct Neighbours;  // characters that a merge joins
  CharacterBpe(const Json& model, const std::string& origin, Neighbours neighbours);

  int32_t id_of_character(uint32_t code) const;
  bool may_cut(uint32_t left, uint32_t right) const;
  void encode_part(std::string_view part, PieceCache& cache, std::vector<int32_t>& ids) const;
  std::vector<int32_t> symbols_of(std::string_view part) const;

  std::string origin_;
  std::vector<int32_t> id_of_character_;   // by code; -1: none
  std::array<int32_t, 256> id_of_byte_{};  // <0x00> to <0xFF> where bytes stand in for characters; -1: none
  bool has_all_bytes_ = false;
  int32_t unknown_id_ = -1;
  bool fuses_unknown_;
  bool ignore_merges_;  // true: a piece that is a token becomes that token without merges
  size_t longest_token_bytes_ = 0;
  BpeMerges merges_;
  MergeTable neighbours_;
  bool cuts_ = true;
};

}  // namespace trireme
