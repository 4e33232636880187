#include "trireme/base/json.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "trireme/base/input_file.h"

namespace trireme {
namespace {

std::string line_at(const std::string& text, size_t byte) {
  const std::string_view before(text.data(), std::min(byte, text.size()));
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return cat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
             before.size() - line_begin + 1, " (byte ", byte, ")");
}

// What other formats have and JSON has not, where the text ends to be JSON at `byte`; else empty.
std::string not_in_json(const std::string& text, size_t byte) {
  if (byte >= text.size()) return "";
  const char wrong = text[byte];
  if (wrong == '/' || wrong == '#') return "JSON has no comments: remove it";
  if (wrong == '\'') return "JSON writes text in double quotes";
  if (text.compare(byte, 3, "NaN") == 0 || text.compare(byte, 8, "Infinity") == 0)
    return "JSON has no NaN and no infinity, which Python writes unless told allow_nan=False: write null";
  if (wrong != '}' && wrong != ']') return "";
  const size_t before = byte == 0 ? std::string::npos : text.find_last_not_of(" \t\r\n", byte - 1);
  return before != std::string::npos && text[before] == ','
             ? cat("JSON has no comma before ", wrong, ": remove it")
             : "";
}

// Runs before the parser builds values: copying and comparing values is recursive.
void check_depth(const std::string& text, const std::string& origin) {
  constexpr int64_t kMostDepth = 100;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t offset = 0; offset < text.size(); ++offset) {
    const char c = text[offset];
    if (in_string) {
      if (c == '\\')
        ++offset;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostDepth)
        throw DataError(cat(origin, ": ", line_at(text, offset), ": objects and arrays lie more than ",
                            kMostDepth, " deep in one another; such a file was not made for this use"));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

// Passes over a text and throws where an object has a key twice. (The parser's own callback would go through
// all of an object after each object in it.)
class EqualKeys final : public nlohmann::json_sax<Json> {
 public:
  explicit EqualKeys(const std::string& origin) : origin_(origin) {}

  bool start_object(size_t) override {
    keys_of_open_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_of_open_.pop_back();
    return true;
  }
  bool key(string_t& key) override {
    if (!keys_of_open_.back().insert(key).second)
      throw DataError(cat(origin_, ": \"", quotation(key), "\" is there twice in one object; give it once"));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  const std::string& origin_;
  std::vector<std::set<std::string>> keys_of_open_;
};

[[noreturn]] void refuse_field(const std::string& origin, const std::string& key, const Json* found,
                               const std::string& expected) {
  throw DataError(cat(origin, ": \"", quotation(key), "\" is ",
                      found == nullptr ? "missing" : quotation(*found), "; expected ", expected));
}

std::string range_text(const WholeRange& range) {
  if (range.most == std::numeric_limits<int64_t>::max()) return cat("a whole number >= ", range.least);
  return cat("a whole number from ", range.least, " to ", range.most);
}

std::optional<int64_t> whole_within(const Json& value, const WholeRange& range) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  const auto number = value.get<int64_t>();
  if (number < range.least || number > range.most) return std::nullopt;
  return number;
}

}  // namespace

Json parse_json(const std::string& text, const std::string& origin, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes)
    throw DataError(cat(origin, ": ", text.size(), " bytes of JSON; at most ", limits.bytes, " are read"));
  check_depth(text, origin);
  try {
    if (limits.refuse_equal_keys) {
      EqualKeys equal_keys(origin);
      Json::sax_parse(text, &equal_keys);  // text that is no JSON is told about below
    }
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const size_t byte = error.byte == 0 ? 0 : error.byte - 1;
    const std::string habit = not_in_json(text, byte);
    throw DataError(cat(origin, ": not valid JSON at ", line_at(text, byte), ": ",
                        habit.empty() ? quotation(error.what()) : habit));
  } catch (const Json::exception& error) {  // such as a number too large for a double
    throw DataError(cat(origin, ": not valid JSON: ", quotation(error.what())));
  }
}

Json parse_json_flag(const std::string& text, const std::string& flag, const JsonLimits& limits) {
  try {
    return parse_json(text, flag, limits);
  } catch (const DataError& error) {
    throw ConfigError(error.what());
  }
}

Json read_json(const std::filesystem::path& file, const JsonLimits& limits) {
  const InputFile in(file, "a JSON file");
  return parse_json(in.whole(limits.bytes), file.string(), limits);
}

std::string as_utf8(const std::string& text) {
  return parse_json(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace), "text")
      .get<std::string>();
}

const Json* find_field(const Json& object, const std::string& key, const std::string& origin) {
  if (!object.is_object())
    throw DataError(cat(origin, ": got ", quotation(object), "; expected a JSON object"));
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

int64_t whole_number(const Json& object, const std::string& key, WholeRange range, const std::string& origin,
                     std::optional<int64_t> otherwise) {
  const Json* found = find_field(object, key, origin);
  if (found == nullptr && otherwise) return *otherwise;
  const auto number = found == nullptr ? std::nullopt : whole_within(*found, range);
  if (!number) refuse_field(origin, key, found, range_text(range));
  return *number;
}

double finite_number(const Json& object, const std::string& key, double least, double most,
                     const std::string& origin, std::optional<double> otherwise) {
  const Json* found = find_field(object, key, origin);
  if (found == nullptr && otherwise) return *otherwise;
  const double number = found != nullptr && found->is_number() ? found->get<double>() : std::nan("");
  if (!(std::isfinite(number) && number >= least && number <= most))
    refuse_field(origin, key, found, cat("a number from ", least, " to ", most));
  return number;
}

bool true_or_false(const Json& object, const std::string& key, const std::string& origin,
                   std::optional<bool> otherwise) {
  const Json* found = find_field(object, key, origin);
  if (found == nullptr && otherwise) return *otherwise;
  if (found == nullptr || !found->is_boolean()) refuse_field(origin, key, found, "true or false");
  return found->get<bool>();
}

std::string text_value(const Json& object, const std::string& key, const std::string& origin,
                       const std::optional<std::string>& otherwise) {
  const Json* found = find_field(object, key, origin);
  if (found == nullptr && otherwise) return *otherwise;
  if (found == nullptr || !found->is_string()) refuse_field(origin, key, found, "a string");
  return found->get<std::string>();
}

const Json& object_value(const Json& object, const std::string& key, const std::string& origin) {
  const Json* found = find_field(object, key, origin);
  if (found == nullptr || !found->is_object()) refuse_field(origin, key, found, "an object");
  return *found;
}

const Json& array_value(const Json& object, const std::string& key, const std::string& origin) {
  const Json* found = find_field(object, key, origin);
  if (found == nullptr || !found->is_array()) refuse_field(origin, key, found, "a list");
  return *found;
}

int64_t whole_number(const Json& value, WholeRange range, const std::string& what) {
  const auto number = whole_within(value, range);
  if (!number) throw DataError(cat(what, " is ", quotation(value), "; expected ", range_text(range)));
  return *number;
}

}  // namespace trireme
