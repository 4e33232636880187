// Characters that the Hugging Face tokenizers library and the libraries used here see by different versions
// of Unicode. The library's split patterns know Unicode 16, Oniguruma 6.9.8 knows 14; its NFC knows Unicode
// 9, utf8proc knows 15. With both differences made up for, ids are equal for every character, whatever
// versions are installed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

// For split patterns and questions of category: `text` with each character of Unicode 15 and 16 replaced by
// one of Unicode 14 of the same category and the same number of bytes, so that places in the two are the
// same. Nothing when there is none.
std::optional<std::string> with_older_characters(std::string_view text);

// The same for one character; itself when it is not newer.
uint32_t older_character(uint32_t code);

// For NFC: the place and length in bytes of the first character at or after `from` that the library does not
// know, and so leaves as it is: for it a base without decomposition. {text.size(), 0} when there is none.
std::pair<size_t, size_t> find_character_unknown_to_nfc(std::string_view text, size_t from);

}  // namespace trireme
