#include "trireme/data/encoded_document.h"

#include <algorithm>

namespace trireme {

void EncodedDocument::drop_first(int64_t count) {
  ids.erase(ids.begin(), ids.begin() + count);
  prompt_tokens = std::max<int64_t>(prompt_tokens - count, 0);
}

void EncodedDocument::drop_last(int64_t count) {
  ids.erase(ids.end() - count, ids.end());
  prompt_tokens = std::min(prompt_tokens, std::ssize(ids));
}

EncodedDocument encode_document(const Tokenizer& tokenizer, std::string_view text, int64_t prompt_bytes,
                                PieceCache& cache) {
  EncodedDocument encoded{tokenizer.encode(text, cache)};
  if (prompt_bytes == 0) return encoded;
  const std::vector<int32_t> prompt =
      tokenizer.encode(text.substr(0, static_cast<size_t>(prompt_bytes)), cache);
  encoded.prompt_tokens = std::ranges::mismatch(encoded.ids, prompt).in1 - encoded.ids.begin();
  return encoded;
}

}  // namespace trireme
