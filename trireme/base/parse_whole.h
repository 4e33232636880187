// A whole number as text.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace trireme {

// The number that a whole text is, without a blank, a plus or a unit; nullopt: it is none, or one that the
// type does not hold.
template <std::integral Number>
std::optional<Number> parse_whole(std::string_view text, int base = 10) {
  Number value{};
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, value, base);
  return error == std::errc() && end == text_end ? std::optional(value) : std::nullopt;
}

}  // namespace trireme
