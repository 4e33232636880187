// GPT-2's byte-level alphabet: each of the 256 bytes has one printable character by which token files write
// it (a space is "G with dot", U+0120). Between the files and the text everything in Trireme is bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

// The character of each byte.
const std::array<uint32_t, 256>& byte_level_alphabet();

// The token's bytes; nothing when a character is not of the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);
// The token as a file writes it.
std::string token_of_bytes(std::string_view bytes);

}  // namespace trireme
