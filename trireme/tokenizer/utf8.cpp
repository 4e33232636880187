#include "trireme/tokenizer/utf8.h"

#include <array>
#include <cstring>

#include <utf8proc.h>

namespace trireme {

namespace {

constexpr uint32_t kReplacement = 0xFFFD;

bool all_ascii(const char* eight_bytes) {
  uint64_t word = 0;
  std::memcpy(&word, eight_bytes, sizeof word);
  return (word & 0x8080808080808080ULL) == 0;
}

}  // namespace

Utf8Character read_longer_character(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const uint32_t lead = byte(offset);
  if (lead < 0xC2 || lead > 0xF4) return {kReplacement, 1, false};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range keeps out overlong forms, surrogates and what lies above U+10FFFF.
  uint32_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  uint32_t code = lead & (0xFFU >> (length + 1));
  for (int i = 1; i < length; ++i) {
    const uint32_t next = byte(offset + static_cast<size_t>(i));
    if (next < low || next > high) return {kReplacement, i, false};
    code = (code << 6) | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, true};
}

void append_character(std::string& out, uint32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  out.append(bytes.begin(), bytes.begin() + count);
}

bool is_valid_utf8(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    if (offset + 8 <= text.size() && all_ascii(text.data() + offset)) {
      offset += 8;
      continue;
    }
    const Utf8Character character = read_character(text, offset);
    if (!character.valid) return false;
    offset += static_cast<size_t>(character.bytes);
  }
  return true;
}

std::string with_replacements(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_characters(text, [&](size_t offset, const Utf8Character& character) {
    if (character.valid)
      out.append(text.substr(offset, static_cast<size_t>(character.bytes)));
    else
      append_character(out, kReplacement);
  });
  return out;
}

bool is_white_space(uint32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

}  // namespace trireme
