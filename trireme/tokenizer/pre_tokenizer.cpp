#include "trireme/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <cstdlib>

#include <utf8proc.h>

#include "trireme/base/error.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"
#include "trireme/tokenizer/unicode_versions.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

// GPT-2's pattern, which ByteLevel applies when use_regex is on.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool is_number(uint32_t code) {
  // Digits of Unicode 17, which the library's Digits knows already.
  if ((code >= 0x11DE0 && code <= 0x11DE9) || (code >= 0x16FF4 && code <= 0x16FF6)) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(older_character(code)));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

// Calls piece(text) for each run of digits, or each digit, and for the text between.
void split_digits(std::string_view text, bool each_alone,
                  const std::function<void(std::string_view)>& piece) {
  size_t begin = 0;
  bool run_is_digits = false;
  for (size_t offset = 0; offset < text.size();) {
    const Utf8Character character = read_character(text, offset);
    const bool digit = is_number(character.code);
    if (offset > begin && (digit != run_is_digits || (digit && each_alone))) {
      piece(text.substr(begin, offset - begin));
      begin = offset;
    }
    run_is_digits = digit;
    offset += static_cast<size_t>(character.bytes);
  }
  if (begin < text.size()) piece(text.substr(begin));
}

void append_nfc(std::string& out, std::string_view text) {
  utf8proc_uint8_t* normal = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &normal,
                                  static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (bytes < 0)
    throw DataError(
        cat("a document of ", text.size(), " bytes cannot be normalized: ", utf8proc_errmsg(bytes)));
  out.append(reinterpret_cast<const char*>(normal), static_cast<size_t>(bytes));
  std::free(normal);
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& origin) {
  if (!json.is_null()) add(json, origin);
}

void Normalizer::add(const Json& json, const std::string& origin) {
  const std::string type = text_value(json, "type", origin + ": normalizer");
  if (type == "NFC") {
    nfc_ = true;
  } else if (type == "Sequence") {
    for (const Json& part : array_value(json, "normalizers", origin + ": normalizer")) add(part, origin);
  } else {
    refuse_tokenizer(origin,
                     cat("the tokenizer's normalizer is ", quotation(type), ", not null, NFC or a Sequence"));
  }
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage) const {
  // Every character below U+0300 is its own NFC and composes with nothing before it; its lead byte is below
  // 0xCC.
  const bool plain = std::ranges::all_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0xCC;
  });
  if (!nfc_ || plain) return text;
  storage.clear();
  for (size_t offset = 0; offset < text.size();) {
    const auto [unknown, bytes] = find_character_unknown_to_nfc(text, offset);
    append_nfc(storage, text.substr(offset, unknown - offset));
    storage.append(text.substr(unknown, bytes));
    offset = unknown + bytes;
  }
  return storage;
}

PreTokenizer::PreTokenizer(const Json& json, const std::string& origin) {
  if (!json.is_null()) add(json, origin);
  const auto byte_level = std::ranges::find(steps_, Kind::byte_level, &Step::kind);
  if (byte_level == steps_.end() || byte_level + 1 != steps_.end())
    refuse_tokenizer(origin, "the tokenizer's pre_tokenizer does not end in ByteLevel");
}

void PreTokenizer::add(const Json& json, const std::string& origin) {
  const std::string where = origin + ": pre_tokenizer", type = text_value(json, "type", where);
  Step step;
  if (type == "Sequence") {
    for (const Json& part : array_value(json, "pretokenizers", where)) add(part, origin);
    return;
  }
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    step.add_prefix_space = true_or_false(json, "add_prefix_space", where, true);
    if (true_or_false(json, "use_regex", where, true)) step.pattern.emplace_back(kGpt2Pattern, origin);
  } else if (type == "Digits") {
    step.kind = Kind::digits;
    step.each_digit_alone = true_or_false(json, "individual_digits", where, false);
  } else if (type == "Split") {
    const Json& pattern = object_value(json, "pattern", where + ": Split");
    if (const std::string literal = text_value(pattern, "String", where + ": Split", ""); !literal.empty())
      step.pattern.emplace_back(literal_pattern(literal), origin);
    else
      step.pattern.emplace_back(text_value(pattern, "Regex", where + ": Split's pattern"), origin);
    const auto behavior = text_value(json, "behavior", where + ": Split");
    if (behavior != "Isolated" && behavior != "Removed")
      refuse_tokenizer(origin, cat("the tokenizer splits with the behavior \"", quotation(behavior),
                                   "\", not Isolated or Removed"));
    const bool invert = true_or_false(json, "invert", where + ": Split", false);
    step.drop_matches = behavior == "Removed" && !invert;
    step.drop_others = behavior == "Removed" && invert;
  } else {
    refuse_tokenizer(origin, cat("the tokenizer's pre_tokenizer is ", quotation(type)));
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::step(size_t index, std::string_view text, const Sink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) {
    sink(text);
    return;
  }
  const Step& now = steps_[index];
  if (now.kind == Kind::digits) {
    split_digits(text, now.each_digit_alone, [&](std::string_view piece) { step(index + 1, piece, sink); });
    return;
  }
  std::string with_space;
  if (now.add_prefix_space && text[0] != ' ') text = with_space.append(" ").append(text);
  if (now.pattern.empty()) {
    step(index + 1, text, sink);
    return;
  }
  now.pattern[0].split(text, [&](std::string_view piece, bool is_match) {
    if (!(is_match ? now.drop_matches : now.drop_others)) step(index + 1, piece, sink);
  });
}

}  // namespace trireme
