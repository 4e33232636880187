#include "trireme/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

constexpr bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable Latin-1 stands for itself; the other 68 bytes take U+0100 onwards in order.
constexpr std::array<uint32_t, 256> make_alphabet() {
  std::array<uint32_t, 256> alphabet{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) alphabet[byte] = is_printable(byte) ? byte : next++;
  return alphabet;
}

constexpr uint32_t kCharacters = 0x144;  // one above the largest of the alphabet

constexpr std::array<int16_t, kCharacters> make_inverse() {
  std::array<int16_t, kCharacters> inverse{};
  for (int16_t& byte : inverse) byte = -1;
  const auto alphabet = make_alphabet();
  for (int16_t byte = 0; byte < 256; ++byte) inverse[alphabet[static_cast<size_t>(byte)]] = byte;
  return inverse;
}

constexpr std::array<uint32_t, 256> kAlphabet = make_alphabet();
constexpr std::array<int16_t, kCharacters> kByteOfCharacter = make_inverse();

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (size_t offset = 0; offset < token.size();) {
    const Utf8Character character = read_character(token, offset);
    if (!character.valid || character.code >= kCharacters || kByteOfCharacter.at(character.code) < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOfCharacter.at(character.code)));
    offset += static_cast<size_t>(character.bytes);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) append_character(token, kAlphabet.at(static_cast<unsigned char>(byte)));
  return token;
}

}  // namespace trireme
