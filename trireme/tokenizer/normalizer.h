// tokenizer.json's "normalizer": how text is rewritten before it is split. Supported: null, NFC, Prepend,
// Replace of a string, BertNormalizer, Sequence. All others are refused by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/tokenizer/bert_text.h"

namespace trireme {

class Normalizer {
 public:
  // Throws ConfigError for an unsupported normalizer.
  Normalizer(const Json& json, const std::string& origin);
  // The normalized text; `text` must be valid UTF-8. `storage` holds the result where it differs from `text`.
  std::string_view normalize(std::string_view text, std::string& storage) const;

  // Whether the first character of the result always comes from the text's first one.
  bool keeps_the_beginning() const { return keeps_the_beginning_; }
  // Whether several characters may come of the text's first one.
  bool lengthens_the_beginning() const { return lengthens_the_beginning_; }

 private:
  enum class Kind { nfc, prepend, replace, bert };
  struct Step {
    Kind kind = Kind::nfc;
    std::string pattern;
    std::string content;
    BertText bert;
  };
  void add(const Json& json, const std::string& origin);

  std::vector<Step> steps_;
  size_t growth_ = 1;  // a text becomes at most so many times as long by Replace
  bool keeps_the_beginning_ = true;
  bool lengthens_the_beginning_ = false;
};

// `text` with every `pattern`, which is not empty, replaced.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace trireme
