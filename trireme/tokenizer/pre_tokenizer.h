// tokenizer.json's "pre_tokenizer": it splits normalized text into pieces, which the model takes one by one.
// Supported: null, ByteLevel (behind it Split, Digits and Punctuation alone), Metaspace, BertPreTokenizer, Split
// (Isolated, Removed, MergedWithPrevious), Digits, Punctuation (Isolated, Contiguous), Sequence. All others are
// refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/tokenizer/split_pattern.h"
#include "trireme/tokenizer/token_model.h"

namespace trireme {

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view piece)>;
  enum class Origin { begin, later };  // where a text stood in its document

  // Throws ConfigError for an unsupported pre-tokenizer, and for ByteLevel before a step that does not only cut.
  PreTokenizer(const Json& json, const std::string& origin);
  // Calls `sink` for each piece in order; never for an empty one.
  void split(std::string_view text, Origin origin, const Sink& sink) const { step(0, text, origin, sink); }

  // What pieces are made of.
  Alphabet alphabet() const;
  // Whether a document's first piece is treated in a manner of its own.
  bool knows_the_beginning() const;
  // Whether another step comes before the one that treats it so.
  bool splits_before_the_beginning() const;

 private:
  enum class Kind { split, runs, byte_level, metaspace, bert };
  enum class Prepend { always, first, never };
  struct Step {
    Kind kind = Kind::split;
    std::vector<SplitPattern> pattern;  // one, or none
    bool drop_matches = false;
    bool drop_others = false;
    bool merge_with_previous = false;       // a match ends the piece before it
    bool match_others = false;              // the pattern matches pieces, not what is between them
    bool (*is_of_run)(uint32_t) = nullptr;  // digits, or punctuation
    bool each_alone = false;                // a piece for each character of a run
    bool add_prefix_space = false;
    std::string replacement;  // of a space; begins pieces
    Prepend prepend = Prepend::always;
    bool splits = true;
  };
  void add(const Json& json, const std::string& origin);
  static Step read_metaspace(const Json& json, const std::string& field);
  static bool is_first_metaspace(const Step& step);
  static Step read_split(const Json& json, const std::string& origin);
  void step(size_t index, std::string_view text, Origin origin, const Sink& sink) const;

  std::vector<Step> steps_;
};

}  // namespace trireme
