// Characters that the Hugging Face tokenizers library and the libraries used here treat by different versions
// of Unicode. In split patterns the library knows Unicode 16, and Oniguruma 6.9.8 knows 14. In NFC and NFD
// the library knows Unicode 9, in BERT's text Unicode 8, in lowercase Unicode 17, and utf8proc knows 15. This
// code makes up for these differences, so that ids are equal for every character, whatever versions are
// installed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

// For split patterns and questions of category: replaces each character of Unicode 15 and 16 in `text` by one
// of Unicode 14 with the same category and number of bytes, so that offsets stay the same. nullopt when there
// is none.
std::optional<std::string> with_older_characters(std::string_view text);

// The same for one character; returns any other character unchanged.
uint32_t older_character(uint32_t code);

// For BERT's text: a character that has the category which `code` had in Unicode 8, as far as it is a mark,
// punctuation, a control or a format character.
uint32_t character_of_unicode_8(uint32_t code);

// The one character that is `code` in lowercase.
uint32_t lowercase_character(uint32_t code);

// For NFC and NFD: the byte offset and length of the first character at or after `from` that the library does
// not know and leaves unchanged, as a base without decomposition. {text.size(), 0} when there is none.
std::pair<size_t, size_t> find_character_unknown_to_nfc(std::string_view text, size_t from);

}  // namespace trireme
