#include "trireme/plan/python_tokens.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using Kind = PythonToken::Kind;

bool begins_name(char letter) {
  return std::isalpha(static_cast<unsigned char>(letter)) || letter == '_' ||
         static_cast<unsigned char>(letter) >= 0x80;
}
bool is_of_name(char letter) {
  return begins_name(letter) || std::isdigit(static_cast<unsigned char>(letter));
}

class PythonLexer {
 public:
  PythonLexer(const std::string& text, const std::string& file) : text_(text), file_(file) {
    if (text.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark, which Python passes over
    while (at_ < text.size()) next();
    if (!brackets_.empty()) fail("a bracket without its end", brackets_.back());
    add(Kind::line_end, at_);
  }

  std::vector<PythonToken> list;

 private:
  [[noreturn]] void fail(const char* what, size_t at) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw DataError(cat(file_, ": line ", line, " has ", what, "; expected a script of Python"));
  }
  void add(Kind kind, size_t end) {
    list.push_back({kind, at_, end, static_cast<int>(brackets_.size())});
    at_ = end;
  }
  char letter(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void next() {
    const char c = letter();
    if (c == '\n') {
      if (brackets_.empty()) return add(Kind::line_end, at_ + 1);
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
      ++at_;
    } else if (c == '\\') {
      at_ = std::min(text_.size(), at_ + (letter(1) == '\r' ? 3 : 2));
    } else if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (const size_t quote = quote_at(); quote != std::string::npos) {
      add(Kind::text, end_of_text(quote));
    } else if (begins_name(c)) {
      size_t end = at_;
      while (end < text_.size() && is_of_name(text_[end])) ++end;
      add(Kind::name, end);
    } else if (std::isdigit(static_cast<unsigned char>(c)) ||
               (c == '.' && std::isdigit(static_cast<unsigned char>(letter(1))))) {
      size_t end = at_;
      while (end < text_.size() && (is_of_name(text_[end]) || text_[end] == '.' || is_exponent_sign(end)))
        ++end;
      add(Kind::number, end);
    } else {
      symbol(c);
    }
  }
  bool is_exponent_sign(size_t at) const {
    return (text_[at] == '-' || text_[at] == '+') && (text_[at - 1] == 'e' || text_[at - 1] == 'E');
  }
  // The quote of a string that begins here, after its prefix of letters; npos: none does.
  size_t quote_at() const {
    size_t at = at_;
    while (at < text_.size() && at < at_ + 3 &&
           std::string_view("rRbBuUfFtT").find(text_[at]) != std::string_view::npos)
      ++at;
    return at < text_.size() && (text_[at] == '"' || text_[at] == '\'') ? at : std::string::npos;
  }
  size_t end_of_text(size_t quote) const {
    const bool triple = text_.compare(quote, 3, std::string(3, text_[quote])) == 0;
    const std::string end(triple ? 3 : 1, text_[quote]);
    for (size_t at = quote + end.size(); at < text_.size(); ++at) {
      if (text_[at] == '\\') {
        ++at;
      } else if (text_.compare(at, end.size(), end) == 0) {
        return at + end.size();
      } else if (text_[at] == '\n' && !triple) {
        break;
      }
    }
    fail("a string without its end", quote);
  }
  void symbol(char c) {
    constexpr size_t kMostBrackets = 200;  // as Python itself takes
    if (c == '(' || c == '[' || c == '{') {
      if (brackets_.size() == kMostBrackets) fail("more than 200 brackets in one another", at_);
      add(Kind::symbol, at_ + 1);
      brackets_.push_back(at_ - 1);
    } else if (c == ')' || c == ']' || c == '}') {
      const char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets_.empty() || text_[brackets_.back()] != opening) fail("a bracket that closes nothing", at_);
      brackets_.pop_back();
      add(Kind::symbol, at_ + 1);
    } else {
      const bool doubled = c == letter(1) && contains(std::string_view("*/<>"), c);
      const bool two = doubled || letter(1) == '=' || (c == '-' && letter(1) == '>');
      add(Kind::symbol, at_ + (two ? 2 : 1));
    }
  }

  const std::string& text_;
  const std::string& file_;
  size_t at_ = 0;
  std::vector<size_t> brackets_;
};

}  // namespace

std::vector<PythonToken> python_tokens(const std::string& text, const std::string& file) {
  return PythonLexer(text, file).list;
}

}  // namespace trireme
