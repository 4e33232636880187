// GPT-2's byte-level alphabet: token files write each of the 256 bytes as one printable character (a space is
// "G with dot", U+0120). Everything between the files and the text is bytes in Trireme.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trireme {

// The token's bytes; nullopt when a character is not in the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);
// The token as a file writes it.
std::string token_of_bytes(std::string_view bytes);

}  // namespace trireme
