// Sizes as people write and read them: 512k is 524,288 and 1m is 1,048,576 everywhere. 5b is 5,000,000,000,
// as people tell how many tokens they train on.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// "16384", "16k", "1m", "2g", "5b" (any case) -> a count. Throws ConfigError that quotes `what` and `text`.
int64_t parse_count(const std::string& text, const std::string& what);

// 1536 -> "1.5 KiB"
std::string format_bytes(int64_t bytes);

// 16384 -> "16,384"
std::string format_count(int64_t count);

// 3.14159 with two digits -> "3.14"
std::string format_fixed(double value, int digits);

// 0.1234 -> "12.3 %"
std::string format_percent(double share, int digits = 1);

// 3725 seconds -> "1:02:05"
std::string format_duration(double seconds);

}  // namespace trireme
