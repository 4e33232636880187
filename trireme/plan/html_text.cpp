#include "trireme/plan/html_text.h"

#include <cmath>
#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/sizes.h"
#include "trireme/plan/plan_text.h"

namespace trireme {

std::string html_escaped(const std::string& text) {
  std::string escaped;
  for (const char letter : as_utf8(text)) {
    switch (letter) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '\n':
      case '\t':
        escaped += letter;
        break;
      default:
        if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f)
          escaped += "\xEF\xBF\xBD";
        else
          escaped += letter;
    }
  }
  return escaped;
}

std::string whole_digits(double value) {
  char digits[40];
  std::snprintf(digits, sizeof(digits), "%.17g", value);
  return digits;
}

std::string html_data(int64_t value, const std::string& text) {
  return cat("<data value=\"", value, "\">", text, "</data>");
}

std::string html_data(double value, const std::string& text) {
  return cat("<data value=\"", whole_digits(value), "\">", text, "</data>");
}

std::string html_count(int64_t value) {
  return html_data(value, format_count(value));
}

std::string html_bytes(int64_t value) {
  return html_data(value, format_bytes(value));
}

std::string html_seconds(double value) {
  return html_data(
      value,
      cat(value < 100 ? format_fixed(value, value < 0.1 ? 4 : 2) : format_count(std::llround(value)), " s"));
}

std::string html_rate(double per_second) {
  return html_data(per_second, rate_text(per_second));
}

std::string html_share(double share) {
  return html_data(share, format_percent(share));
}

}  // namespace trireme
