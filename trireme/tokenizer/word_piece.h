// WordPiece, the kind of BERT: a word becomes the longest token that it begins with, then the longest that
// goes on (with the prefix ##), and so forth. A word that cannot be spelled so becomes the unknown token
// whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/tokenizer/token_model.h"

namespace trireme {

class WordPiece final : public TokenModel {
 public:
  // Throws DataError for missing or wrong fields.
  WordPiece(const Json& model, const std::string& origin);

  void encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const override;

 private:
  // Appends the tokens of `word`; false if it cannot be spelled.
  bool spell(std::string_view word, std::vector<int32_t>& ids) const;

  std::string origin_;
  std::string prefix_;  // of tokens that go on
  std::string unknown_;
  int64_t longest_word_characters_;
  size_t longest_token_bytes_ = 0;
};

}  // namespace trireme
