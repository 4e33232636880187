#include "trireme/cli/option_parser.h"

#include <algorithm>
#include <iostream>
#include <unistd.h>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/nearest_name.h"
#include "trireme/base/option_value.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/foreign_flags.h"

namespace trireme {
namespace {

bool is_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

// Words of `text` in lines of `width` columns; those after the first begin `indent` columns further right.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::istringstream words(text);
  std::string lines;
  size_t column = 0;
  for (std::string word; words >> word; column += word.size()) {
    if (column > 0 && column + 1 + word.size() > width) {
      lines += "\n" + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      lines += ' ';
      ++column;
    }
    lines += word;
  }
  return lines;
}

}  // namespace

bool is_switched_on(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string flag = "--" + name;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.starts_with(flag + "=")) return parse_boolean(word.substr(flag.size() + 1)).value_or(false);
    if (word == flag) return i + 1 == arguments.size() || parse_boolean(arguments[i + 1]).value_or(true);
  }
  return false;
}

bool asks_for_help(const std::string& word) {
  return word == "--help" || word == "-h";
}

std::string default_text(const Option& option) {
  const Json value = option.read();
  if (value.is_number()) return number_text(value.get<double>());
  if (value.is_boolean()) return value.get<bool>() ? "true" : "";
  return value.is_string() ? value.get<std::string>() : "";
}

std::vector<std::string> OptionParser::names() const {
  std::vector<std::string> names;
  for (const Option& option : options())
    if (option.is_flag()) names.push_back(option.name);
  return names;
}

const Option& OptionParser::find(const std::string& name) const {
  for (const Option& option : options())
    if (option.is_flag() && (option.name == name || contains(option.other_names, name))) return option;
  const std::string refusal = cat("trireme ", command_, " has no flag --", quotation(name));
  const char* const after = after_flags_.empty() ? "" : " Flags of the command itself come after --";
  if (const auto answer = answer_unknown_ ? answer_unknown_(name) : std::nullopt)
    throw ConfigError(cat(refusal, ": ", *answer));
  if (const auto answer = foreign_flag_answer(name)) throw ConfigError(cat(refusal, ": ", *answer));
  if (const auto nearest = nearest_name(name, names()))
    throw ConfigError(cat(refusal, "; did you mean --", *nearest, "?", after));
  throw ConfigError(
      cat(refusal, ". See trireme ", command_, " --help", after_flags_.empty() ? "" : ".", after));
}

std::map<std::string, std::vector<std::string>> OptionParser::words_of(
    const std::vector<std::string>& arguments) {
  std::map<std::string, std::vector<std::string>> words_of_flag;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!is_flag(word) && !after_flags_.empty()) {
      rest_.assign(arguments.begin() + static_cast<std::ptrdiff_t>(word == "--" ? i + 1 : i),
                   arguments.end());
      break;
    }
    if (!is_flag(word))
      throw ConfigError(cat("trireme ", command_, " does not know what to do with '", quotation(word),
                            "'; flags begin with --. See trireme ", command_, " --help"));
    const size_t equals = word.find('=');
    std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const Option& option = find(name);
    const bool many = option.type == OptionType::paths;
    if (words_of_flag.contains(option.name) && !many)
      throw ConfigError(cat("--", name, " is given more than once; give it once"));
    std::vector<std::string>& words = words_of_flag[option.name];
    const auto next_is_value = [&] {
      return i + 1 < arguments.size() && !arguments[i + 1].empty() && !is_flag(arguments[i + 1]) &&
             arguments[i + 1] != "--";
    };
    if (equals != std::string::npos && equals + 1 < word.size()) {
      words.push_back(word.substr(equals + 1));
    } else if (option.type == OptionType::boolean && equals == std::string::npos) {
      const bool takes = next_is_value() && parse_boolean(arguments[i + 1]);
      words.emplace_back(takes ? arguments[++i] : "true");
    } else {
      if (equals == std::string::npos && !next_is_value() && option.may_stand_alone) {
        words.emplace_back();
        continue;
      }
      if (equals != std::string::npos || !next_is_value())
        throw ConfigError(cat("--", name, " needs a value: ", option.help));
      do words.push_back(arguments[++i]);
      while (many && next_is_value());
    }
  }
  return words_of_flag;
}

bool OptionParser::parse(const std::vector<std::string>& arguments, const std::function<void()>& read_files) {
  // A command that follows has a --help of its own.
  if (after_flags_.empty() ? std::ranges::any_of(arguments, asks_for_help)
                           : arguments.empty() || asks_for_help(arguments.front())) {
    std::cout << help();
    return false;
  }
  std::vector<GivenValue> flags;
  for (const auto& [name, words] : words_of(arguments)) {
    refuse_foreign_value(name, words.front());
    flags.push_back({name, parse_option_words(find(name), words), "--" + name});
  }
  given_ = write(flags);
  if (read_files) read_files();
  for (const Option& option : options())
    if (option.must_be_given && !given(option.name))
      throw ConfigError(cat("trireme ", command_, " needs --", option.name));
  return true;
}

std::vector<GivenValue> OptionParser::write(const std::vector<GivenValue>& values) const {
  std::vector<GivenValue> written;
  std::vector<size_t> must_stay;
  for (const GivenValue& value : values) {
    const Option& option = find(value.option);
    try {
      option.check(value.value);
    } catch (const ConfigError& error) {
      throw ConfigError(value.source == "--" + value.option ? error.what()
                                                            : cat(value.source, ": ", error.what()));
    }
    option.write(value.value);
    for (const size_t i : must_stay)
      if (find(written[i].option).read() != written[i].value)
        throw ConfigError(
            cat(written[i].source, " and ", value.source, " contradict each other; give one of them"));
    // --gradient_checkpointing false leaves --recompute any choice.
    if (option.in_config || value.value != false) must_stay.push_back(written.size());
    written.push_back({value.option, option.read(), value.source});
  }
  return written;
}

void OptionParser::add_file_values(const std::vector<GivenValue>& values, Precedence precedence) {
  const std::vector<GivenValue> of_file = write(values);
  std::vector<GivenValue> all;
  const auto still_there = [&](const GivenValue& value) { return find(value.option).read() == value.value; };
  for (const GivenValue& before : given_) {
    find(before.option).write(before.value);
    if (precedence == Precedence::before_counts) continue;
    for (const GivenValue& value : of_file)
      if (!still_there(value))
        throw ConfigError(cat(value.source, " is ", quotation(value.value), ", and ", before.source, " is ",
                              quotation(before.value),
                              ": they contradict each other; leave one of them out, or write \"auto\" in the "
                              "file, which takes what is given elsewhere"));
  }
  for (const GivenValue& value : of_file)
    if (still_there(value)) all.push_back(value);
  // The first of two that give one option is its source.
  given_.insert(given_.end(), all.begin(), all.end());
}

std::string OptionParser::source_of(const std::string& name) const {
  for (const GivenValue& value : given_)
    if (value.option == name) return value.source;
  return "";
}

std::string OptionParser::help() const {
  constexpr size_t kNames = 44;
  const int columns = terminal_columns(STDOUT_FILENO);
  const size_t width =
      std::max<size_t>(kNames + 36, columns > 0 ? static_cast<size_t>(columns) : 120) - kNames;
  std::string usage = cat("usage: trireme ", command_);
  for (const Option& option : options())
    if (option.must_be_given) usage += cat(" --", option.name, " ", value_text(option));
  std::string text = cat(description_, "\n", usage, " [--flag value ...]", after_flags_, "\n");
  for (const auto& [group, title] : enum_names(OptionGroup{})) {
    std::string lines;
    for (const Option& option : options()) {
      if (!option.is_flag() || option.group != group) continue;
      std::string line = cat("  --", option.name);
      if (const std::string value = value_text(option); !value.empty()) line += " " + value;
      if (const std::string value = default_text(option); !value.empty()) line += "=" + value;
      if (option.must_be_given) line += " (required)";
      line += line.size() < kNames ? std::string(kNames - line.size(), ' ') : "\n" + std::string(kNames, ' ');
      const std::string others =
          option.other_names.empty() ? "" : cat("; also --", joined(option.other_names, ", --"));
      lines += cat(line, wrapped(option.help + others, width, kNames), "\n");
    }
    if (!lines.empty()) text += cat("\n", group == OptionGroup::command ? "flags" : title, ":\n", lines);
  }
  return text;
}

}  // namespace trireme
