// A text and the prompt with which it may begin, as tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/tokenizer/tokenizer.h"

namespace trireme {

struct EncodedDocument {
  std::vector<int32_t> ids;
  int64_t prompt_tokens = 0;  // the first of them

  // Without its first `count` tokens.
  void drop_first(int64_t count);
  void drop_last(int64_t count);
};

// The text is encoded as one; its first `prompt_bytes` are the prompt. The prompt's tokens are those up to
// where the prompt alone would be encoded otherwise. So a token that also holds what follows the prompt is
// none of them and is predicted, as are a few before it where the encoding changes earlier (spaces before a
// word). Throws what Tokenizer::encode throws.
EncodedDocument encode_document(const Tokenizer& tokenizer, std::string_view text, int64_t prompt_bytes,
                                PieceCache& cache);

}  // namespace trireme
