#include "trireme/plan/python_source.h"

#include <algorithm>
#include <array>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/parse_whole.h"
#include "trireme/plan/python_tokens.h"

namespace trireme {
namespace {

using Kind = PythonToken::Kind;

class Reader {
 public:
  Reader(const std::string& text, const std::string& file) : tokens_(python_tokens(text, file)) {
    source_.text = text;
    bool begins_statement = true;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (begins_statement) read_statement(i);
      begins_statement = tokens_[i].kind == Kind::line_end || (is(i, ";") && tokens_[i].depth == 0);
      if (is(i, "(")) read_call(i);
    }
    for (PythonCall& call : source_.calls)
      for (PythonArgument& argument : call.arguments)
        argument.value = literal(token_at(argument.value_begin), token_at(argument.end));
    for (Assigned& assigned : attributes_) give_attribute(std::move(assigned));
  }

  PythonSource take() { return std::move(source_); }

 private:
  struct Value {
    std::vector<std::string> targets;  // NAME of NAME = value
    size_t column = 0;                 // of the statement
  };
  struct Assigned {
    std::string name;
    size_t column = 0;  // of the statement
    PythonArgument argument;
  };

  std::string written(size_t i) const {
    return source_.text.substr(tokens_[i].begin, tokens_[i].end - tokens_[i].begin);
  }
  // Of tokens [begin, end), which are some.
  std::string text_of(size_t begin, size_t end) const {
    return source_.text.substr(tokens_[begin].begin, tokens_[end - 1].end - tokens_[begin].begin);
  }
  bool is(size_t i, std::string_view word) const {
    return i < tokens_.size() && tokens_[i].kind != Kind::text &&
           std::string_view(source_.text).substr(tokens_[i].begin, tokens_[i].end - tokens_[i].begin) == word;
  }
  bool is_name(size_t i) const { return i < tokens_.size() && tokens_[i].kind == Kind::name; }
  size_t token_at(size_t begin) const {
    return static_cast<size_t>(std::ranges::lower_bound(tokens_, begin, {}, &PythonToken::begin) -
                               tokens_.begin());
  }
  size_t end_of_statement(size_t i) const {
    while (i < tokens_.size() && tokens_[i].kind != Kind::line_end && !(is(i, ";") && tokens_[i].depth == 0))
      ++i;
    return i;
  }
  // "a.b.c" from token i, with the dots before it; i becomes what follows.
  std::string dotted(size_t& i) const {
    std::string name;
    while (is(i, ".")) name += written(i++);
    if (is_name(i) && !(is(i, "import") && !name.empty())) name += written(i++);
    while (is(i, ".") && is_name(i + 1)) {
      name += cat(".", written(i + 1));
      i += 2;
    }
    return name;
  }

  void read_statement(size_t i) {
    if (is(i, "from") || is(i, "import")) return read_import(i);
    read_assignment(i);
    if (is(i, "class") && is_name(i + 1)) {
      std::vector<std::string>& bases = source_.classes[written(i + 1)];
      for (size_t at = i + 3; is(i + 2, "(") && at < tokens_.size() && !is(at, ")"); ++at)
        if (is_name(at)) bases.push_back(dotted(at)), --at;
    }
    if (is_name(i) && is(i + 1, "=")) {
      const std::string name = written(i);
      const bool again = constants_.contains(name);
      constants_[name] = again ? std::nullopt : literal(i + 2, end_of_statement(i));
    } else {
      const size_t end = end_of_assigned(i);  // of a, b = f(), a += 1, a: int = 1, for a in b, def f(a)
      for (size_t at = i; at < end; ++at)
        if (is_name(at) && !(at > i && is(at - 1, "."))) constants_[written(at)] = std::nullopt;
    }
  }
  size_t end_of_assigned(size_t i) const {
    const bool loops = is(i, "for"), defines = is(i, "def");
    const size_t statement_end = end_of_statement(i);
    size_t end = i;
    for (size_t at = i; at < statement_end; ++at)
      if (assigns(at) || (loops && is(at, "in")) || (defines && is(at, ":") && tokens_[at].depth == 0))
        end = at;
    return end;
  }
  bool assigns(size_t i) const {
    if (tokens_[i].depth > 0 || tokens_[i].kind != Kind::symbol) return false;
    const std::string word = written(i);
    return word.ends_with('=') && word != "==" && word != "<=" && word != ">=" && word != "!=";
  }

  // After `if a:` or `else:` in the same line, what follows; else the statement's own begin.
  size_t begin_of_simple(size_t i) const {
    constexpr std::array kClauses = {"if",   "elif", "else",   "for",    "while",
                                     "with", "try",  "except", "finally"};
    if (std::ranges::none_of(kClauses, [&](const char* word) { return is(i, word); })) return i;
    for (size_t at = i, end = end_of_statement(i); at < end; ++at)
      if (is(at, ":") && tokens_[at].depth == 0) return at + 1;
    return i;
  }

  // NAME = value, NAME: type = value, NAME.attribute = value, NAME.attribute += value, A = B = value.
  void read_assignment(size_t statement) {
    const size_t i = begin_of_simple(statement), end = end_of_statement(i);
    std::vector<std::string> targets;
    size_t value = i;
    bool is_plain = true;
    for (size_t at = i; at < end; ++at)
      if (assigns(at) && at > value) {
        const bool is_operator = tokens_[at - 1].kind == Kind::symbol && !is(at - 1, "]") && !is(at - 1, ")");
        size_t end_of_target = value;
        while (end_of_target < at - (is_operator ? 1 : 0) &&
               !(is(end_of_target, ":") && tokens_[end_of_target].depth == 0))
          ++end_of_target;
        if (end_of_target == value) return;
        is_plain &= is(at, "=") && !is_operator;  // no //= or **=
        for (size_t first = value, last = value; last < end_of_target; ++last) {
          const bool parts = is(last, ",") && tokens_[last].depth == 0;  // a.x, d = 7, 8
          is_plain &= !parts;
          if (!parts && last + 1 < end_of_target) continue;
          const size_t end_of_one = parts ? last : last + 1;
          if (end_of_one > first) targets.push_back(text_of(first, end_of_one));
          first = last + 1;
        }
        value = at + 1;
      }
    if (targets.empty() || value >= end) return;
    Assigned assigned;
    assigned.column = tokens_[statement].begin - (source_.text.rfind('\n', tokens_[statement].begin) + 1);
    PythonArgument& argument = assigned.argument;
    argument.begin = tokens_[i].begin;
    argument.value_begin = tokens_[value].begin;
    argument.end = tokens_[end - 1].end;
    argument.written = text_of(value, end);
    if (is_plain && i == statement) argument.value = literal(value, end);
    for (const std::string& target : targets)
      if (const size_t dot = target.rfind('.'); dot != std::string::npos) {
        Assigned attribute = assigned;
        attribute.name = target.substr(0, dot);
        attribute.argument.keyword = target.substr(dot + 1);
        attributes_.push_back(std::move(attribute));
      }
    if (is_plain) values_.emplace(argument.value_begin, Value{std::move(targets), assigned.column});
  }

  // To the last call before it that made what the name holds. What stands deeper than that call, under an
  // `if`, has a value that is not known.
  void give_attribute(Assigned assigned) {
    PythonCall* made = nullptr;
    for (PythonCall& call : source_.calls)
      if (contains(call.names, assigned.name) && call.begin < assigned.argument.begin) made = &call;
    if (made == nullptr) return;
    if (assigned.column > values_.at(made->begin).column) assigned.argument.value.reset();
    made->later.push_back(std::move(assigned.argument));
  }

  void read_import(size_t i) {
    const size_t end = end_of_statement(i);
    const size_t begin_byte = tokens_[i].begin, end_byte = tokens_[end - 1].end;
    size_t at = i + 1;
    std::string module;
    if (is(i, "from")) {
      module = dotted(at);
      if (is(at, "import")) ++at;
    }
    while (at < end) {
      if (!is_name(at)) {
        ++at;
        continue;
      }
      const std::string name = dotted(at);
      std::string as = module.empty() ? name.substr(0, name.find('.')) : name;
      const std::string whole = module.empty() ? (is(at, "as") ? name : as) : cat(module, ".", name);
      if (is(at, "as") && is_name(at + 1)) {
        as = written(at + 1);
        at += 2;
      }
      source_.imports[as] = {whole, begin_byte, end_byte};
    }
  }

  void read_call(size_t open) {
    if (open == 0 || !is_name(open - 1)) return;
    size_t first = open - 1;
    while (first >= 2 && is(first - 1, ".") && is_name(first - 2)) first -= 2;
    const bool of_something = first >= 1 && is(first - 1, ".");
    if (first >= 1 && (is(first - 1, "def") || is(first - 1, "class"))) return;
    PythonCall call;
    call.callee = of_something ? "." : "";
    for (size_t i = first; i < open; ++i) call.callee += written(i);
    call.begin = tokens_[first].begin;
    if (const auto value = values_.find(call.begin); value != values_.end())
      call.names = value->second.targets;
    call.open = tokens_[open].begin;
    const int depth = tokens_[open].depth + 1;
    size_t begin = open + 1;
    for (size_t i = open + 1; i < tokens_.size(); ++i) {
      const bool closes = is(i, ")") && tokens_[i].depth == depth - 1;
      if (!closes && !(is(i, ",") && tokens_[i].depth == depth)) continue;
      if (i > begin) add_argument(call, begin, i);
      begin = i + 1;
      if (!closes) continue;
      call.close = tokens_[i].begin;
      break;
    }
    source_.calls.push_back(std::move(call));
  }

  void add_argument(PythonCall& call, size_t begin, size_t end) const {
    PythonArgument argument;
    size_t value = begin;
    if (is_name(begin) && is(begin + 1, "=")) {
      argument.keyword = written(begin);
      value = begin + 2;
    }
    argument.begin = tokens_[begin].begin;
    argument.end = tokens_[end - 1].end;
    argument.value_begin = value < end ? tokens_[value].begin : argument.end;
    argument.written = source_.text.substr(argument.value_begin, argument.end - argument.value_begin);
    call.arguments.push_back(std::move(argument));
  }

  static std::optional<Json> product(const Json& one, const Json& other) {
    int64_t value = 0;
    const bool overflows = __builtin_mul_overflow(one.get<int64_t>(), other.get<int64_t>(), &value);
    return overflows ? std::nullopt : std::optional<Json>(value);
  }
  // Of tokens [begin, end): a number, whole numbers multiplied, a text, True, False, None, a constant.
  std::optional<Json> literal(size_t begin, size_t end) const {
    const bool negative = is(begin, "-");
    if (negative) ++begin;
    if (begin >= end) return std::nullopt;
    std::optional<Json> value = literal(begin);
    if (negative && value)
      value = value->is_number_integer() ? product(*value, -1)
              : value->is_number()       ? std::optional<Json>(-value->get<double>())
                                         : std::nullopt;
    for (size_t i = begin + 1; i < end && value; ++i) {
      if (tokens_[i].kind == Kind::text && value->is_string()) {
        const auto more = literal(i);
        if (!more) return std::nullopt;
        value = value->get<std::string>() + more->get<std::string>();
        continue;
      }
      const auto factor = is(i, "*") && i + 1 < end ? literal(i + 1) : std::nullopt;
      if (!factor || !factor->is_number_integer() || !value->is_number_integer()) return std::nullopt;
      value = product(*value, *factor);
      ++i;
    }
    return value;
  }
  std::optional<Json> literal(size_t i) const {
    std::string word = written(i);
    if (tokens_[i].kind == Kind::text) {
      const size_t quote = word.find_first_of("\"'");
      if (word.find_first_of("bBfFtT") < quote || word.find('\\') != std::string::npos) return std::nullopt;
      const size_t marks =
          word.compare(quote, 3, std::string(3, word[quote])) == 0 && word.size() >= quote + 6 ? 3 : 1;
      return Json(word.substr(quote + marks, word.size() - quote - 2 * marks));
    }
    if (tokens_[i].kind == Kind::number) {
      std::erase(word, '_');
      if (const auto whole = parse_whole<int64_t>(word)) return Json(*whole);
      char* end = nullptr;
      const double value = std::strtod(word.c_str(), &end);  // 5., 1.e-5, .5
      const bool decimal = *end == '\0' && word.find_first_of("xXpP") == std::string::npos;
      return decimal ? std::optional<Json>(value) : std::nullopt;
    }
    if (word == "True" || word == "False") return Json(word == "True");
    if (word == "None") return Json();
    const auto constant = constants_.find(word);
    return constant == constants_.end() ? std::nullopt : constant->second;
  }

  PythonSource source_;
  std::vector<PythonToken> tokens_;
  std::map<size_t, Value> values_;  // by where they begin
  std::vector<Assigned> attributes_;
  std::map<std::string, std::optional<Json>> constants_;
};

}  // namespace

const PythonArgument* PythonCall::find(const std::string& keyword) const {
  const auto after = std::find_if(later.rbegin(), later.rend(), [&](const PythonArgument& argument) {
    return argument.keyword == keyword;
  });
  if (after != later.rend()) return &*after;
  const auto found = std::ranges::find(arguments, keyword, &PythonArgument::keyword);
  return found == arguments.end() ? nullptr : &*found;
}

std::vector<const PythonArgument*> PythonCall::keywords() const {
  std::vector<const PythonArgument*> found;
  for (const std::vector<PythonArgument>* const list : {&arguments, &later})
    for (const PythonArgument& argument : *list)
      if (!argument.keyword.empty() && find(argument.keyword) == &argument) found.push_back(&argument);
  return found;
}

std::string PythonSource::resolved(const std::string& written) const {
  std::string name = written;
  for (size_t steps = 0; steps <= classes.size(); ++steps) {
    const size_t dot = name.find('.');
    const auto import = imports.find(name.substr(0, dot));
    if (import != imports.end()) {
      const std::string whole = import->second.name + (dot == std::string::npos ? "" : name.substr(dot));
      const size_t first = whole.find('.'), last = whole.rfind('.');
      return first == std::string::npos ? whole : whole.substr(0, first) + whole.substr(last);
    }
    const auto its_class = classes.find(name);
    if (its_class == classes.end() || its_class->second.empty()) return "";
    name = its_class->second.front();
  }
  return "";
}

int PythonSource::line_of(size_t at) const {
  return static_cast<int>(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

PythonSource read_python_source(const std::string& text, const std::string& file) {
  return Reader(text, file).take();
}

}  // namespace trireme
