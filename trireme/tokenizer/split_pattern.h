// A split pattern of tokenizer.json, run by Oniguruma, the engine that the Hugging Face library uses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trireme {

class SplitPattern {
 public:
  // Throws ConfigError that names `origin`, the file, and quotes the pattern and Oniguruma's reason.
  SplitPattern(const std::string& pattern, const std::string& origin);

  // Calls `piece(text, is_match)` in order for the matches and the text between them; together they are
  // `text`. Skips empty pieces. Throws DataError for a text of more than 2^31 - 1 bytes, and for a match
  // beyond Oniguruma's limits. Thread-safe.
  void split(std::string_view text, const std::function<void(std::string_view, bool)>& piece) const;

 private:
  std::string pattern_;
  std::string origin_;
  std::shared_ptr<void> regex_;
};

// The pattern that matches `literal` and nothing else.
std::string literal_pattern(std::string_view literal);

}  // namespace trireme
