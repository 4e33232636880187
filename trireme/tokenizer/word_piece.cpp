#include "trireme/tokenizer/word_piece.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

WordPiece::WordPiece(const Json& model, const std::string& origin)
    : TokenModel(read_vocabulary(model, origin)),
      origin_(origin),
      prefix_(text_value(model, "continuing_subword_prefix", origin + ": model")),
      unknown_(text_value(model, "unk_token", origin + ": model")),
      longest_word_characters_(whole_number(model, "max_input_chars_per_word", {}, origin + ": model")) {
  for (const auto& [token, id] : vocabulary())
    longest_token_bytes_ = std::max(longest_token_bytes_, token.size());
}

void WordPiece::encode(std::string_view piece, PieceCache& cache, std::vector<int32_t>& ids) const {
  cache.append(piece, ids, [&] {
    const size_t before = ids.size();
    if (std::ranges::count_if(piece, begins_character) <= longest_word_characters_ && spell(piece, ids))
      return;
    ids.resize(before);
    const auto unknown = vocabulary().find(unknown_);
    if (unknown == vocabulary().end())
      throw DataError(cat(origin_, ": the text has the word \"", quotation(piece),
                          "\", which no tokens spell, and the unknown token \"", quotation(unknown_),
                          "\" is not in the vocabulary"));
    ids.push_back(unknown->second);
  });
}

bool WordPiece::spell(std::string_view word, std::vector<int32_t>& ids) const {
  std::string candidate;
  for (size_t begin = 0; begin < word.size();) {
    candidate = begin == 0 ? "" : prefix_;
    const size_t prefix = candidate.size();
    candidate.append(word.substr(begin, longest_token_bytes_));
    while (candidate.size() > prefix) {
      // A token ends where a character of the word does.
      const size_t end = begin + candidate.size() - prefix;
      if (end == word.size() || begins_character(word[end])) {
        if (const auto found = vocabulary().find(candidate); found != vocabulary().end()) {
          ids.push_back(found->second);
          break;
        }
      }
      candidate.pop_back();
    }
    if (candidate.size() == prefix) return false;
    begin += candidate.size() - prefix;
  }
  return true;
}

}  // namespace trireme
