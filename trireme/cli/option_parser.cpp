#include "trireme/cli/option_parser.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/foreign_flags.h"
#include "trireme/cli/nearest_name.h"

namespace trireme {
namespace {

bool is_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

std::optional<bool> parse_boolean(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* yes : {"true", "yes", "1", "on", "y", "t"})
    if (text == yes) return true;
  for (const char* no : {"false", "no", "0", "off", "n", "f"})
    if (text == no) return false;
  return std::nullopt;
}

std::string number_text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

bool is_switched_on(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string flag = "--" + name;
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& word = arguments[at];
    if (word.starts_with(flag + "=")) return parse_boolean(word.substr(flag.size() + 1)).value_or(false);
    if (word == flag) return at + 1 == arguments.size() || parse_boolean(arguments[at + 1]).value_or(true);
  }
  return false;
}

OptionParser::OptionParser(std::string command, const std::string& description)
    : command_(std::move(command)), app_(std::make_unique<CLI::App>(description, "trireme " + command_)) {
  app_->get_formatter()->column_width(44);
  app_->get_formatter()->label("REQUIRED", "(required)");
}

OptionParser::~OptionParser() = default;

OptionParser::Flag& OptionParser::add(const std::string& name, const std::string& type,
                                      const std::string& default_text, const std::string& help) {
  Flag& flag = flags_[name];
  CLI::Option* option = app_->add_option("--" + name, flag.words, help)->type_name(type)->expected(1);
  if (!default_text.empty()) option->default_str(default_text);
  return flag;
}

void OptionParser::text(const std::string& name, std::string& value, const std::string& help) {
  add(name, "TEXT", value, help).set = [&value](const auto& words) { value = words[0]; };
}

void OptionParser::path(const std::string& name, std::filesystem::path& value, const std::string& help) {
  add(name, "PATH", value.string(), help).set = [&value](const auto& words) { value = words[0]; };
}

void OptionParser::paths(const std::string& name, std::vector<std::filesystem::path>& value,
                         const std::string& help) {
  Flag& flag = add(name, "PATH...", "", help);
  flag.many = true;
  app_->get_option("--" + name)->expected(1, 1 << 20);
  flag.set = [&value](const auto& words) { value.assign(words.begin(), words.end()); };
}

void OptionParser::count(const std::string& name, int64_t& value, const std::string& help) {
  add(name, "COUNT", std::to_string(value), help).set = [&value, name](const auto& words) {
    const int64_t count = parse_count(words[0], "--" + name);
    if (count < 0) throw ConfigError(cat("--", name, " is ", count, "; expected 0 or more"));
    value = count;
  };
}

void OptionParser::integer(const std::string& name, int64_t& value, const std::string& help) {
  add(name, "INT", std::to_string(value), help).set = [&value, name](const auto& words) {
    value = parse_count(words[0], "--" + name);
  };
}

void OptionParser::real(const std::string& name, double& value, const std::string& help) {
  add(name, "NUMBER", number_text(value), help).set = [&value, name](const auto& words) {
    const std::string& word = words[0];
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    if (word.empty() || *end != '\0' || !std::isfinite(number))
      throw ConfigError(cat("--", name, " is '", quotation(word), "'; expected a number such as 3e-4"));
    value = number;
  };
}

void OptionParser::flag(const std::string& name, bool& value, const std::string& help) {
  Flag& flag = add(name, "", value ? "true" : "false", help);
  flag.boolean = true;
  flag.set = [&value, name](const auto& words) {
    const auto parsed = parse_boolean(words[0]);
    if (!parsed)
      throw ConfigError(cat("--", name, " is '", quotation(words[0]), "'; expected true or false"));
    value = *parsed;
  };
}

void OptionParser::choice(const std::string& name, std::string& value,
                          const std::vector<std::string>& choices, const std::string& help) {
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : "|") + choice;
  add(name, list, value, help).set = [&value, name, choices, list](const auto& words) {
    if (std::find(choices.begin(), choices.end(), words[0]) == choices.end()) {
      const auto nearest = nearest_name(words[0], choices);
      throw ConfigError(cat("--", name, " is '", quotation(words[0]), "'; expected one of ", list,
                            nearest ? cat(". Did you mean '", *nearest, "'?") : std::string()));
    }
    value = words[0];
  };
}

std::vector<std::string> OptionParser::names() const {
  std::vector<std::string> names;
  names.reserve(flags_.size());
  for (const auto& [name, flag] : flags_) names.push_back(name);
  return names;
}

void OptionParser::refuse_unknown(const std::string& name) const {
  const std::string refusal = cat("trireme ", command_, " has no flag --", quotation(name));
  if (const auto answer = foreign_flag_answer(name)) throw ConfigError(cat(refusal, ": ", *answer));
  if (const auto nearest = nearest_name(name, names()))
    throw ConfigError(cat(refusal, "; did you mean --", *nearest, "?"));
  throw ConfigError(cat(refusal, ". See trireme ", command_, " --help"));
}

std::vector<std::string> OptionParser::normalise(const std::vector<std::string>& arguments) const {
  std::set<std::string> met;
  std::vector<std::string> out;
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& word = arguments[at];
    if (!is_flag(word))
      throw ConfigError(cat("trireme ", command_, " does not know what to do with '", quotation(word),
                            "'; flags begin with --. See trireme ", command_, " --help"));
    const size_t equals = word.find('=');
    std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const auto found = flags_.find(name);
    if (found == flags_.end()) refuse_unknown(name);
    if (!met.insert(name).second && !found->second.many)
      throw ConfigError(cat("--", name, " is given more than once; give it once"));
    if (equals != std::string::npos) {
      out.push_back(cat("--", name, "=", word.substr(equals + 1)));
      continue;
    }
    const bool next_is_value = at + 1 < arguments.size() && !is_flag(arguments[at + 1]);
    if (found->second.boolean) {
      const bool takes = next_is_value && parse_boolean(arguments[at + 1]);
      out.push_back(cat("--", name, "=", takes ? arguments[++at] : std::string("true")));
      continue;
    }
    if (!next_is_value) throw ConfigError(cat("--", name, " needs a value"));
    do out.push_back(cat("--", name, "=", arguments[++at]));
    while (found->second.many && at + 1 < arguments.size() && !is_flag(arguments[at + 1]));
  }
  return out;
}

bool OptionParser::parse(const std::vector<std::string>& arguments) {
  if (std::any_of(arguments.begin(), arguments.end(),
                  [](const std::string& word) { return word == "--help" || word == "-h"; })) {
    std::cout << help();
    return false;
  }
  std::vector<std::string> words = normalise(arguments);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app_->parse(words);
  } catch (const CLI::ParseError& error) {
    throw ConfigError(cat("trireme ", command_, ": ", quotation(error.what())));
  }
  for (auto& [name, flag] : flags_) {
    if (app_->get_option("--" + name)->count() == 0) continue;
    flag.set(flag.words);
    given_.insert(name);
  }
  for (const std::string& name : required_)
    if (!given(name)) throw ConfigError(cat("trireme ", command_, " needs --", name));
  return true;
}

std::string OptionParser::help() const {
  for (const std::string& name : required_) app_->get_option("--" + name)->required();
  std::string text = app_->help();
  for (const std::string& name : required_) app_->get_option("--" + name)->required(false);
  return text;
}

}  // namespace trireme
