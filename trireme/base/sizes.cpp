#include "trireme/base/sizes.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme {

int64_t parse_count(const std::string& text, const std::string& what) {
  const auto fail = [&](const char* why) -> int64_t {
    throw ConfigError(cat(what, ": '", quotation(text), "' ", why,
                          "; expected one such as 1000, or with k, m, g or t (512k), or b, a billion"));
  };
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc::result_out_of_range) return fail("is too large");
  if (code != std::errc() || end - rest > 1) return fail("is not a whole number");
  if (rest == end) return value;
  const bool billions = *rest == 'b' || *rest == 'B';
  const size_t unit = std::string_view("kKmMgGtT").find(*rest);
  if (!billions && unit == std::string_view::npos) return fail("is not a whole number");
  const int64_t factor = billions ? 1'000'000'000 : int64_t{1} << (10 * (unit / 2 + 1));
  if (__builtin_mul_overflow(value, factor, &value)) return fail("is too large");
  return value;
}

std::string format_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::fabs(value) >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return cat(format_fixed(value, unit == 0 ? 0 : 1), " ", kUnits[unit]);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const int first = count < 0 ? 1 : 0;
  for (int offset = static_cast<int>(digits.size()) - 3; offset > first; offset -= 3)
    digits.insert(offset, ",");
  return digits;
}

std::string format_fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string format_percent(double share, int digits) {
  return format_fixed(100 * share, digits) + " %";
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const int64_t total = std::llround(seconds);
  char text[64];
  std::snprintf(text, sizeof(text), "%lld:%02lld:%02lld", static_cast<long long>(total / 3600),
                static_cast<long long>(total / 60 % 60), static_cast<long long>(total % 60));
  return text;
}

}  // namespace trireme
