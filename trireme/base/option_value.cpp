#include "trireme/base/option_value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/lower_case.h"
#include "trireme/base/nearest_name.h"
#include "trireme/base/sizes.h"

namespace trireme {

double parse_real(const std::string& text, const std::string& what) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(number))
    throw ConfigError(cat(what, " is '", quotation(text), "'; expected a number such as 3e-4"));
  return number;
}

namespace {

// As a flag's words; a file may say true for text, an object for JSON text, a list for words with commas or for
// a choice by its one name.
std::vector<std::string> words_of_value(const Option& option, const Json& value, std::string_view prefix) {
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_array() && option.type == OptionType::paths) {
    std::vector<std::string> words;
    for (const Json& each : value) words.push_back(each.is_string() ? each.get<std::string>() : each.dump());
    if (!words.empty()) return words;
  }
  const auto is_name = [](const Json& each) { return each.is_string() && each != ""; };
  if (value.is_array() && !value.empty() && std::ranges::all_of(value, is_name)) {
    if (option.is_list) return {joined(value, ",", [](const Json& each) { return each.get<std::string>(); })};
    if (option.type == OptionType::choice && value.size() == 1) return {value[0].get<std::string>()};
  }
  const bool is_number = option.type == OptionType::count || option.type == OptionType::real;
  const bool fits = (value.is_number() && (is_number || option.type == OptionType::text)) ||
                    (value.is_boolean() && !is_number && option.type != OptionType::path) ||
                    (value.is_object() && option.type == OptionType::text) ||
                    (value.is_array() && option.is_list);
  if (!fits)
    throw ConfigError(cat(prefix, option.name, " is ", quotation(value), "; expected ",
                          value_text(option).empty() ? "true or false" : value_text(option)));
  const bool whole = value.is_number_float() && option.type == OptionType::count &&
                     value == std::floor(value.get<double>()) && std::abs(value.get<double>()) < 1e15;
  return {whole ? cat(static_cast<int64_t>(value.get<double>())) : value.dump()};
}

}  // namespace

std::optional<bool> parse_boolean(const std::string& written) {
  const std::string text = lower_case(written);
  for (const char* yes : {"true", "yes", "1", "on", "y", "t"})
    if (text == yes) return true;
  for (const char* no : {"false", "no", "0", "off", "n", "f"})
    if (text == no) return false;
  return std::nullopt;
}

std::string value_text(const Option& option) {
  switch (option.type) {
    case OptionType::text:
      return "TEXT";
    case OptionType::path:
      return "PATH";
    case OptionType::paths:
      return "PATH...";
    case OptionType::count:
      return option.range && option.range->least < 0 ? "INT" : "COUNT";
    case OptionType::real:
      return "NUMBER";
    case OptionType::boolean:
      return "";
    case OptionType::choice:
      break;
  }
  return joined(option.choices, "|");
}

Json parse_option_words(const Option& option, const std::vector<std::string>& words,
                        std::string_view prefix) {
  const std::string what = cat(prefix, option.name);
  const std::string& word = words.front();
  switch (option.type) {
    case OptionType::text:
    case OptionType::path:
      return word;
    case OptionType::paths:
      return words;
    case OptionType::count:
      return parse_count(word, what);
    case OptionType::real:
      return parse_real(word, what);
    case OptionType::boolean:
      if (const auto parsed = parse_boolean(word)) return *parsed;
      throw ConfigError(cat(what, " is '", quotation(word), "'; expected true or false"));
    case OptionType::choice:
      break;
  }
  if (contains(option.choices, word)) return word;
  throw ConfigError(cat(what, " is '", quotation(word), "'; expected one of ", value_text(option),
                        did_you_mean(word, option.choices)));
}

Json parse_option_value(const Option& option, const Json& value, std::string_view prefix) {
  return parse_option_words(option, words_of_value(option, value, prefix), prefix);
}

}  // namespace trireme
