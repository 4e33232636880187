// Characters that the Hugging Face tokenizers library and the libraries used here treat by different versions
// of Unicode. In split patterns the library knows Unicode 16, and Oniguruma 6.9.8 knows 14. In NFC the
// library knows Unicode 9, and utf8proc knows 15. This code makes up for both differences, so that ids are
// equal for every character, whatever versions are installed.
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

// For NFC: the byte offset and length of the first character at or after `from` that the library does not
// know and leaves unchanged, as a base without decomposition. {text.size(), 0} when there is none.
std::pair<size_t, size_t> find_character_unknown_to_nfc(std::string_view text, size_t from);

}  // namespace trireme
