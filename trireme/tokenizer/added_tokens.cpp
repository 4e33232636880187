#include "trireme/tokenizer/added_tokens.h"

#include <algorithm>
#include <limits>

#include <utf8proc.h>

#include "trireme/base/error.h"
#include "trireme/tokenizer/unicode_versions.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

// \w of Unicode's regular expressions (UTS 18): alphabetic, mark, decimal number, connector or joiner. The
// Alphabetic property beyond letters is letter numbers, marks and the circled letters.
bool is_word(uint32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(older_character(code)));
  // From LU to NL: letters, marks, decimal numbers, letter numbers.
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) return true;
  return category == UTF8PROC_CATEGORY_PC || code == 0x200C || code == 0x200D ||
         (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

bool word_ends_at(std::string_view text, size_t end) {
  return end > 0 && is_word(read_character(text, begin_of_last_character(text, end)).code);
}

bool word_begins_at(std::string_view text, size_t begin) {
  return begin < text.size() && is_word(read_character(text, begin).code);
}

size_t before_white_space(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t last = begin_of_last_character(text, end);
    if (!is_white_space(read_character(text, last).code)) break;
    end = last;
  }
  return end;
}

size_t after_white_space(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Character character = read_character(text, begin);
    if (!is_white_space(character.code)) break;
    begin += static_cast<size_t>(character.bytes);
  }
  return begin;
}

}  // namespace

std::vector<AddedToken> parse_added_tokens(const Json& json, const std::string& origin) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  if (!json.is_array())
    throw DataError(cat(origin, ": added_tokens is ", quotation(json), "; expected a list"));
  const std::string entry_of = origin + ": an entry of added_tokens";
  for (const Json& entry : json) {
    AddedToken token;
    token.id = static_cast<int32_t>(
        whole_number(entry, "id", {0, std::numeric_limits<int32_t>::max() - 1}, entry_of));
    token.content = text_value(entry, "content", entry_of);
    token.special = true_or_false(entry, "special", entry_of, false);
    token.normalized = true_or_false(entry, "normalized", entry_of, !token.special);
    token.single_word = true_or_false(entry, "single_word", entry_of, false);
    token.lstrip = true_or_false(entry, "lstrip", entry_of, false);
    token.rstrip = true_or_false(entry, "rstrip", entry_of, false);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<std::pair<std::string, AddedToken>>& tokens)
    : nodes_(1) {
  for (const auto& [text, token] : tokens) {
    size_t node = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      auto& children = nodes_[node].children;
      const auto child = std::ranges::find(children, byte, &std::pair<unsigned char, int32_t>::first);
      if (child != children.end()) {
        node = static_cast<size_t>(child->second);
        continue;
      }
      children.emplace_back(byte, static_cast<int32_t>(nodes_.size()));
      node = nodes_.size();
      nodes_.emplace_back();
    }
    if (text.empty() || nodes_[node].token >= 0) continue;
    nodes_[node].token = static_cast<int32_t>(tokens_.size());
    begins_.at(static_cast<unsigned char>(text[0])) = true;
    tokens_.push_back(token);
  }
}

std::pair<int32_t, size_t> AddedTokenFinder::longest_at(std::string_view text, size_t offset) const {
  std::pair<int32_t, size_t> best{-1, 0};
  size_t node = 0;
  for (size_t length = 1; offset + length <= text.size(); ++length) {
    const auto byte = static_cast<unsigned char>(text[offset + length - 1]);
    const auto& children = nodes_[node].children;
    const auto child = std::ranges::find(children, byte, &std::pair<unsigned char, int32_t>::first);
    if (child == children.end()) break;
    node = static_cast<size_t>(child->second);
    if (nodes_[node].token >= 0) best = {nodes_[node].token, length};
  }
  return best;
}

void AddedTokenFinder::split(std::string_view text,
                             const std::function<void(std::string_view, const AddedToken*)>& piece) const {
  size_t done = 0;
  for (size_t offset = 0; offset < text.size() && !tokens_.empty();) {
    if (!begins_[static_cast<unsigned char>(text[offset])]) {
      ++offset;
      continue;
    }
    const auto [index, length] = longest_at(text, offset);
    if (index < 0) {
      ++offset;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = offset, end = offset + length;
    offset = end;
    if (token.single_word && (word_ends_at(text, begin) || word_begins_at(text, end))) continue;
    if (token.lstrip) begin = std::max(before_white_space(text, begin), done);
    if (token.rstrip) end = after_white_space(text, end);
    if (begin >= end) continue;  // the token before took the white space that this one is made of
    if (done < begin) piece(text.substr(done, begin - done), nullptr);
    piece(text.substr(begin, end - begin), &token);
    done = end;
  }
  if (done < text.size()) piece(text.substr(done), nullptr);
}

}  // namespace trireme
