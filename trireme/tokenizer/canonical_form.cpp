#include "trireme/tokenizer/canonical_form.h"

#include <algorithm>
#include <cstdlib>

#include <utf8proc.h>

#include "trireme/base/error.h"
#include "trireme/tokenizer/unicode_versions.h"

namespace trireme {

namespace {

void append_form(std::string& out, std::string_view text, CanonicalForm form) {
  const int option = form == CanonicalForm::composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  utf8proc_uint8_t* normal = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &normal,
                                  static_cast<utf8proc_option_t>(UTF8PROC_STABLE | option));
  if (bytes < 0)
    throw DataError(
        cat("a document of ", text.size(), " bytes cannot be normalized: ", utf8proc_errmsg(bytes)));
  out.append(reinterpret_cast<const char*>(normal), static_cast<size_t>(bytes));
  std::free(normal);
}

bool has_byte_from(std::string_view text, unsigned char first) {
  return std::ranges::any_of(text, [first](char c) { return static_cast<unsigned char>(c) >= first; });
}

}  // namespace

std::string canonical_form(std::string_view text, CanonicalForm form) {
  std::string out;
  for (size_t offset = 0; offset < text.size();) {
    const auto [unknown, bytes] = find_character_unknown_to_nfc(text, offset);
    append_form(out, text.substr(offset, unknown - offset), form);
    out.append(text.substr(unknown, bytes));
    offset = unknown + bytes;
  }
  return out;
}

bool may_change_when_composed(std::string_view text) {
  // A character below U+0300 is its own NFC and composes with nothing before it; its lead byte is below 0xCC.
  return has_byte_from(text, 0xCC);
}

bool may_change_when_decomposed(std::string_view text) {
  return has_byte_from(text, 0xC3);  // a character below U+00C0 is its own NFD
}

}  // namespace trireme
