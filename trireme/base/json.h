// The only reader of JSON from outside: files, lines of .jsonl, options. JSON that is too long, nested too
// deeply, or has a number too large for a double throws a DataError with the file. Fields are read by
// name, type and range: a DataError names the file, the field, and the value found and expected.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme {

using Json = nlohmann::json;

// 2^53: whole numbers up to it are exact for readers that hold each number in a double, too.
inline constexpr int64_t kLargestExactWhole = int64_t{1} << 53;

struct JsonLimits {
  int64_t bytes = int64_t{256} << 20;  // of the text
  bool refuse_equal_keys = false;      // of one object; else the last one counts
};

// Reads and parses a file. Throws DataError if the file cannot be opened, is not JSON (file, line, column and
// byte) or exceeds a limit.
Json read_json(const std::filesystem::path& file, const JsonLimits& limits = {});

// Parses text; `origin` is named in the DataError.
Json parse_json(const std::string& text, const std::string& origin, const JsonLimits& limits = {});

// The same of a flag's text: throws ConfigError.
Json parse_json_flag(const std::string& text, const std::string& flag, const JsonLimits& limits = {});

// JSON as text that is safe for a message (error.h).
template <std::same_as<Json> J>
std::string quotation(const J& json) {
  return quotation(std::string_view(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

// Text from outside, cut anywhere: bytes that are no UTF-8 become U+FFFD.
std::string as_utf8(const std::string& text);

// The value under `key`; nullptr if it is absent or null. Throws DataError if `object` is not an object.
const Json* find_field(const Json& object, const std::string& key, const std::string& origin);

// Each function throws DataError if the field is absent and `otherwise` is not given, or if the value has
// another type or is out of range.
struct WholeRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};
int64_t whole_number(const Json& object, const std::string& key, WholeRange range, const std::string& origin,
                     std::optional<int64_t> otherwise = std::nullopt);
double finite_number(const Json& object, const std::string& key, double least, double most,
                     const std::string& origin, std::optional<double> otherwise = std::nullopt);
bool true_or_false(const Json& object, const std::string& key, const std::string& origin,
                   std::optional<bool> otherwise = std::nullopt);
std::string text_value(const Json& object, const std::string& key, const std::string& origin,
                       const std::optional<std::string>& otherwise = std::nullopt);
const Json& object_value(const Json& object, const std::string& key, const std::string& origin);
const Json& array_value(const Json& object, const std::string& key, const std::string& origin);

// A value without a key, such as a list entry; `what` names the value in messages.
int64_t whole_number(const Json& value, WholeRange range, const std::string& what);

}  // namespace trireme
