// The added tokens of tokenizer.json: strings such as <|endoftext|> that are cut out of the text whole,
// before byte-pair encoding. Tokens that are not `normalized` are searched in the original text, the others
// in the normalized text.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // found before another token of the same string
  bool normalized = false;   // searched after normalization
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
};

// "added_tokens", in the file's order. Throws DataError for wrong entries.
std::vector<AddedToken> parse_added_tokens(const Json& json, const std::string& origin);

// Finds tokens in text: at each position the longest, from left to right, without overlap.
class AddedTokenFinder {
 public:
  // Pairs of a string to find and its token; of equal strings the first counts.
  explicit AddedTokenFinder(const std::vector<std::pair<std::string, AddedToken>>& tokens);
  // Calls `piece(text, token)` in order; the token is null for the text between tokens.
  void split(std::string_view text,
             const std::function<void(std::string_view, const AddedToken*)>& piece) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    int32_t token = -1;
  };
  // The longest token that begins at `at`: its index or -1, and its length.
  std::pair<int32_t, size_t> longest_at(std::string_view text, size_t offset) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

}  // namespace trireme
