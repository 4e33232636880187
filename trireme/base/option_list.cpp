#include "trireme/base/option_list.h"

#include <cstdio>

#include "trireme/base/error.h"

namespace trireme {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.16g", value);
  return text;
}

bool OptionRange::holds(double value) const {
  if (!(value >= least && value <= most)) return false;
  if (ends == Ends::above_least) return value > least;
  return ends != Ends::below_most || value < most;
}

std::string OptionRange::text() const {
  const bool open = most == std::numeric_limits<double>::max();
  if (least == most) return number_text(least);
  if (ends == Ends::above_least)
    return cat("a number above ", number_text(least), open ? "" : cat(", up to ", number_text(most)));
  if (open) return cat(number_text(least), " or more");
  return cat("a number from ", number_text(least), ends == Ends::below_most ? " to below " : " to ",
             number_text(most));
}

void Option::check(const Json& value) const {
  if (range && value.is_number() && !range->holds(value.get<double>()))
    throw ConfigError(cat("--", name, " is ", number_text(value.get<double>()), "; expected ", range->text(),
                          " (", help, ")"));
}

Option& OptionList::add(Option option) {
  option.group = group_;
  option.resume_rule = rule_;
  return options_.emplace_back(std::move(option));
}

Option& OptionList::choice(const std::string& name, std::string& value,
                           const std::vector<std::string>& choices, const std::string& help) {
  Option& option = text(name, value, help);
  option.type = OptionType::choice;
  option.choices = choices;
  return option;
}

Option& OptionList::derived(const std::string& name, std::function<Json()> read) {
  return add({.name = name, .read = std::move(read)});
}

void OptionList::check() const {
  for (const Option& option : options_) option.check(option.read());
}

Json OptionList::config() const {
  Json config = Json::object();
  for (const Option& option : options_)
    if (option.in_config) config[option.name] = option.read();
  return config;
}

}  // namespace trireme
