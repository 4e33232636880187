// UTF-8, read one character at a time. Wrong bytes are read as Python's bytes.decode("utf-8",
// errors="replace") reads them: each longest wrong beginning of a character becomes one U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

struct Utf8Character {
  uint32_t code = 0;  // U+FFFD when not valid
  int bytes = 0;      // read, 1 to 4
  bool valid = true;
};

Utf8Character read_longer_character(std::string_view text, size_t offset);

// The character at `offset` < text.size().
inline Utf8Character read_character(std::string_view text, size_t offset) {
  const auto lead = static_cast<unsigned char>(text[offset]);
  return lead < 0x80 ? Utf8Character{lead, 1, true} : read_longer_character(text, offset);
}
// Calls body(offset, character) for each.
template <typename Body>
void for_characters(std::string_view text, const Body& body) {
  for (size_t offset = 0; offset < text.size();) {
    const Utf8Character character = read_character(text, offset);
    body(offset, character);
    offset += static_cast<size_t>(character.bytes);
  }
}
// Whether this is no continuation byte.
constexpr bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}
// Of text[0, end), end > 0.
inline size_t begin_of_last_character(std::string_view text, size_t end) {
  size_t offset = end - 1;
  while (offset > 0 && !begins_character(text[offset])) --offset;
  return offset;
}
void append_character(std::string& out, uint32_t code);

bool is_valid_utf8(std::string_view text);
// `text` with its wrong bytes replaced by U+FFFD.
std::string with_replacements(std::string_view text);

// Unicode's White_Space property.
bool is_white_space(uint32_t code);

}  // namespace trireme
