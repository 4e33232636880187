// SHA-256 (FIPS 180-4), and HMAC (RFC 2104), which proves that two sides share a secret.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest sha256(std::string_view bytes);

// The digest proves that its sender knows `secret`, and does not reveal the secret.
Sha256Digest hmac_sha256(std::string_view secret, std::string_view message);

// The time does not depend on where the texts differ, so a guess learns nothing from the time.
bool equal_in_constant_time(std::string_view a, std::string_view b);

inline std::string_view bytes_of(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Two lower-case digits per byte.
std::string hex_digits(const Sha256Digest& digest);

// The operating system's random bytes. Throws ConfigError if it gives none.
Sha256Digest random_bytes();
// The digits of so many of them, 32 at most.
std::string random_digits(int bytes);

}  // namespace trireme
