// tokenizer.json's "normalizer" and "pre_tokenizer": they turn text into pieces, which byte-pair encoding
// takes one by one. Supported: normalizer null, NFC, Sequence; pre_tokenizer ByteLevel, Split (Isolated,
// Removed), Digits, Sequence, where a ByteLevel must be the last step. All others are refused by name.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/tokenizer/split_pattern.h"

namespace trireme {

class Normalizer {
 public:
  // Throws ConfigError for an unsupported normalizer.
  Normalizer(const Json& json, const std::string& origin);
  // The normalized text; `text` must be valid UTF-8. `storage` holds the result where it differs from `text`.
  std::string_view normalize(std::string_view text, std::string& storage) const;

 private:
  void add(const Json& json, const std::string& origin);
  bool nfc_ = false;
};

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view piece)>;

  // Throws ConfigError for an unsupported pre-tokenizer, or one that does not end in ByteLevel.
  PreTokenizer(const Json& json, const std::string& origin);
  // Calls `sink` for each piece in order; never for an empty one.
  void split(std::string_view text, const Sink& sink) const { step(0, text, sink); }

 private:
  enum class Kind { split, digits, byte_level };
  struct Step {
    Kind kind = Kind::split;
    std::vector<SplitPattern> pattern;  // one, or none
    bool drop_matches = false;
    bool drop_others = false;
    bool each_digit_alone = false;
    bool add_prefix_space = false;
  };
  void add(const Json& json, const std::string& origin);
  void step(size_t index, std::string_view text, const Sink& sink) const;

  std::vector<Step> steps_;
};

}  // namespace trireme
