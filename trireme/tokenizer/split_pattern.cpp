#include "trireme/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <oniguruma.h>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/lower_case.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"
#include "trireme/tokenizer/unicode_versions.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

// Oniguruma counts bytes in int.
constexpr size_t kMostBytes = std::numeric_limits<int>::max();

std::string onig_message(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = onig_error_code_to_str(text.data(), code, info);
  return {reinterpret_cast<const char*>(text.data()), static_cast<size_t>(length)};
}

const OnigUChar* bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

// Sets of characters that are others in the library's version of Oniguruma: there [:punct:] has symbols too, and the
// rest have a few other characters.
constexpr auto kOtherBrackets = std::to_array<std::string_view>({"alnum", "alpha", "lower", "punct"});
constexpr auto kOtherProperties = std::to_array<std::string_view>({"alnum",
                                                                   "alpha",
                                                                   "alphabetic",
                                                                   "caseignorable",
                                                                   "cased",
                                                                   "ci",
                                                                   "dia",
                                                                   "diacritic",
                                                                   "ext",
                                                                   "extender",
                                                                   "graphemeextend",
                                                                   "grext",
                                                                   "idc",
                                                                   "idcontinue",
                                                                   "lower",
                                                                   "lowercase",
                                                                   "oalpha",
                                                                   "otheralphabetic",
                                                                   "sentenceterminal",
                                                                   "sterm",
                                                                   "term",
                                                                   "terminalpunctuation",
                                                                   "word",
                                                                   "xidc",
                                                                   "xidcontinue"});

// As Oniguruma reads a property's name: without case, spaces, hyphens and underscores.
std::string name_of_property(std::string_view written) {
  std::string name(written);
  std::erase_if(name, [](char c) { return std::string_view(" -_").find(c) != std::string_view::npos; });
  return lower_case(name);
}

// The first of them that the pattern has, as it is written there; empty if there is none.
std::string_view other_set(std::string_view pattern) {
  for (size_t at = 0; at < pattern.size(); ++at) {
    const std::string_view rest = pattern.substr(at);
    const bool is_bracket = rest.starts_with("[:");
    if (is_bracket || rest.starts_with("\\p{") || rest.starts_with("\\P{")) {
      const std::string_view end = is_bracket ? ":]" : "}";
      const size_t begin = is_bracket ? 2 : 3, length = std::min(rest.find(end), rest.size());
      std::string_view name = rest.substr(begin, length - begin);
      if (name.starts_with('^')) name.remove_prefix(1);
      if (is_bracket ? contains(kOtherBrackets, name) : contains(kOtherProperties, name_of_property(name)))
        return rest.substr(0, length + end.size());
    }
    if (pattern[at] == '\\') ++at;
  }
  return {};
}

void start_oniguruma() {
  OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
  [[maybe_unused]] static const int started = onig_initialize(encodings, 1);
}

}  // namespace

SplitPattern::SplitPattern(const std::string& pattern, const std::string& origin)
    : pattern_(pattern), origin_(origin) {
  start_oniguruma();
  regex_t* regex = nullptr;
  OnigErrorInfo info{};
  const int code = onig_new(&regex, bytes(pattern_), bytes(pattern_) + pattern_.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL)
    throw ConfigError(cat(origin, ": the tokenizer's split pattern is not valid: ",
                          quotation(onig_message(code, &info)), ": ", quotation(pattern)));
  regex_ = std::shared_ptr<void>(regex, [](void* r) { onig_free(static_cast<regex_t*>(r)); });
  if (const std::string_view other = other_set(pattern_); !other.empty())
    refuse_tokenizer(origin, cat("the tokenizer's split pattern has ", quotation(other),
                                 ", which is another set of characters in the library's version of "
                                 "Oniguruma"));
}

void SplitPattern::split(std::string_view text,
                         const std::function<void(std::string_view, bool)>& piece) const {
  if (text.size() > kMostBytes)
    throw DataError(cat("a text of ", text.size(), " bytes is longer than the ", kMostBytes,
                        " bytes that a tokenizer's split pattern can be matched in: split the document"));
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> found(
      onig_region_new(), [](OnigRegion* region) { onig_region_free(region, 1); });
  auto* regex = static_cast<regex_t*>(regex_.get());
  const std::optional<std::string> older = with_older_characters(text);
  const std::string_view searched = older ? std::string_view(*older) : text;
  const OnigUChar* const begin = bytes(searched);
  const OnigUChar* const end = begin + text.size();
  size_t from = 0, done = 0;
  bool matched_before = false;
  while (from <= text.size()) {
    const auto code = onig_search(regex, begin, end, begin + from, end, found.get(), ONIG_OPTION_NONE);
    if (code == ONIG_MISMATCH) break;
    if (code < 0)
      throw DataError(cat(
          origin_, ": the tokenizer's split pattern cannot be matched at byte ", from, " of a document of ",
          text.size(), " bytes: ", onig_message(static_cast<int>(code), nullptr), ": ", quotation(pattern_)));
    const auto match_begin = static_cast<size_t>(found->beg[0]),
               match_end = static_cast<size_t>(found->end[0]);
    if (match_begin == match_end && matched_before && match_end == done) {
      // An empty match directly after another match does not count: search again one character later.
      from += from < text.size() ? static_cast<size_t>(read_character(text, from).bytes) : 1;
      continue;
    }
    if (done < match_begin) piece(text.substr(done, match_begin - done), false);
    if (match_begin < match_end) piece(text.substr(match_begin, match_end - match_begin), true);
    from = done = match_end;
    matched_before = true;
  }
  if (done < text.size()) piece(text.substr(done), false);
}

std::string literal_pattern(std::string_view literal) {
  std::string pattern;
  for (const char c : literal) {
    if (std::string_view(R"(\.+*?()|[]{}^$#&-~)").find(c) != std::string_view::npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace trireme
