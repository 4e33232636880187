#include "trireme/tokenizer/bert_text.h"

#include <utf8proc.h>

#include "trireme/tokenizer/canonical_form.h"
#include "trireme/tokenizer/unicode_versions.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

utf8proc_category_t category(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character_of_unicode_8(code)));
}

bool is_removed(uint32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  if (code < 0x7F) return code < ' ';
  const auto kind = category(code);
  return code == 0xFFFD || kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO;
}

// The library's ranges, of which the last but two begins later than Unicode's block.
bool is_ideograph(uint32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B81F) ||
         (code >= 0x2B920 && code <= 0x2CEAF) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0x2F800 && code <= 0x2FA1F);
}

// Calls append(out, code) for each character.
template <typename Append>
std::string rewritten(std::string_view text, const Append& append) {
  std::string out;
  out.reserve(text.size());
  for_characters(text, [&](size_t, const Utf8Character& character) { append(out, character.code); });
  return out;
}

void append_lowercase(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code));
  } else if (code == 0x130) {
    out += "i\u0307";
  } else {
    append_character(out, lowercase_character(code));
  }
}

}  // namespace

std::string bert_text(std::string_view text, const BertText& options) {
  std::string out = rewritten(text, [&](std::string& to, uint32_t code) {
    if (options.clean_text) {
      if (is_removed(code)) return;
      if (is_white_space(code)) code = ' ';
    }
    const bool apart = options.handle_chinese_chars && is_ideograph(code);
    if (apart) to.push_back(' ');
    append_character(to, code);
    if (apart) to.push_back(' ');
  });
  if (options.strip_accents && may_change_when_decomposed(out))
    out = rewritten(canonical_form(out, CanonicalForm::decomposed), [](std::string& to, uint32_t code) {
      if (category(code) != UTF8PROC_CATEGORY_MN) append_character(to, code);
    });
  if (options.lowercase) out = rewritten(out, append_lowercase);
  return out;
}

bool is_bert_punctuation(uint32_t code) {
  if (code < 0x80)
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
           (code >= '{' && code <= '~');
  switch (category(code)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

}  // namespace trireme
