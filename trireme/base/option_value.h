// An option's value, read from a flag's words or from a file's JSON or YAML: "32k", 2e-5, "cpu", true.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/base/option_list.h"

namespace trireme {

// The value that a flag's words stand for. Throws ConfigError, which names the option behind `prefix`.
Json parse_option_words(const Option& option, const std::vector<std::string>& words,
                        std::string_view prefix = "--");
// The same of a value of a file. Throws ConfigError too: another type.
Json parse_option_value(const Option& option, const Json& value, std::string_view prefix = "--");
// A finite number. Throws ConfigError that quotes `what` and `text`.
double parse_real(const std::string& text, const std::string& what);
// "True", "no", "1", ...; nullopt: another word.
std::optional<bool> parse_boolean(const std::string& written);
// "COUNT", "fp32|bf16", ...: what an option takes; empty: true or false.
std::string value_text(const Option& option);

}  // namespace trireme
