// BERT's rewriting of text and its punctuation. The library knows Unicode 8 here (unicode_versions.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

// tokenizer.json's BertNormalizer, under its names.
struct BertText {
  bool clean_text = true;            // control characters go, white space becomes spaces
  bool handle_chinese_chars = true;  // spaces around ideographs
  bool strip_accents = true;         // NFD without its nonspacing marks
  bool lowercase = true;
};

// `text` must be valid UTF-8.
std::string bert_text(std::string_view text, const BertText& options);

// What BertPreTokenizer makes a piece of its own.
bool is_bert_punctuation(uint32_t code);

}  // namespace trireme
