// SHA-256 (FIPS 180-4) and the proof of a shared secret made of it, HMAC (RFC 2104).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view bytes);

// Who gives this digest of `message` knows `secret`; it does not tell the secret.
Digest hmac_sha256(std::string_view secret, std::string_view message);

// Takes the same time wherever the two differ, so that a guess learns nothing from the time.
bool equal_in_constant_time(std::string_view a, std::string_view b);

inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Two lower-case digits a byte.
std::string hex_digits(const Digest& digest);

// The operating system's random bytes. Throws ConfigError where it has none to give.
Digest random_bytes();

}  // namespace trireme
