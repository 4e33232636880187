// Text and numbers as HTML. What comes from outside, such as a model's name, is text wherever it stands.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// Markup and control characters are no more; bytes that are no UTF-8 become U+FFFD.
std::string html_escaped(const std::string& text);

// From which a program gets the same double.
std::string whole_digits(double value);
// <data value="66012345678">61.5 GiB</data>: the value that a person reads rounded, whole for a program.
std::string html_data(int64_t value, const std::string& text);
std::string html_data(double value, const std::string& text);
std::string html_count(int64_t value);  // 16,384
std::string html_bytes(int64_t value);  // 15.5 GiB
std::string html_seconds(double value);
std::string html_rate(double per_second);  // 12,345, below 100 with a digit
std::string html_share(double share);      // 0.123 -> 12.3 %

}  // namespace trireme
