#include "trireme/base/error.h"

#include <cstddef>

namespace trireme {
namespace {

constexpr size_t kQuotedBytes = 200;
constexpr size_t kRoomBytes = 60;  // a text longer by at most this stays whole

}  // namespace

std::string quotation(std::string_view text) {
  static constexpr const char* kDigits = "0123456789abcdef";
  size_t end = text.size();
  if (end > kQuotedBytes + kRoomBytes) {
    end = kQuotedBytes;
    while (end > kQuotedBytes - 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;  // cut between UTF-8 characters
  }
  std::string out;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out += c;
    } else {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return end == text.size() ? out : cat(out, "... (", text.size(), " bytes)");
}

}  // namespace trireme
