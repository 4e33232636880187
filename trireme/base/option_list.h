// The options of a command, each described once: its name, where its value lies, range, help, group, and what
// another value means to a run that goes on. Flags and --help (cli/option_parser.h), range errors, a run's
// config.json, what changed on resume (train/resume_rules.h) and docs/options.md all come from this list.
//
//   list.group(OptionGroup::memory);
//   list.choice("recompute", o.recompute.policy, "what backward computes again instead of keeping it");
//   list.count("checkpoint_every", o.recompute.checkpoint_every, at_least(0), "layers a group ...");
//
// The list refers to the values, which must outlive it; or it keeps them (list_of_copy).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/json.h"

namespace trireme {

// In the order of --help. `command`: of one command alone.
enum class OptionGroup {
  command,
  model,
  data,
  schedule,
  optimizer,
  memory,
  sequence,
  checkpoints,
  watching,
  process,
};
constexpr auto enum_names(OptionGroup) {
  using enum OptionGroup;
  return std::to_array<EnumName<OptionGroup>>({{command, "command"},
                                               {model, "model"},
                                               {data, "data"},
                                               {schedule, "schedule"},
                                               {optimizer, "optimizer"},
                                               {memory, "memory"},
                                               {sequence, "sequence"},
                                               {checkpoints, "checkpoints"},
                                               {watching, "watching"},
                                               {process, "process"}});
}

enum class OptionType { text, path, paths, count, real, boolean, choice };

struct OptionRange {
  double least;
  double most;
  enum class Ends { closed, above_least, below_most } ends = Ends::closed;

  bool holds(double value) const;
  std::string text() const;  // "a number from 0 to below 1"
};
constexpr OptionRange from_to(double least, double most) {
  return {least, most};
}
constexpr OptionRange at_least(double least) {
  return {least, std::numeric_limits<double>::max()};
}
constexpr OptionRange above(double least, double most = std::numeric_limits<double>::max()) {
  return {least, most, OptionRange::Ends::above_least};
}
constexpr OptionRange from_to_below(double least, double most) {
  return {least, most, OptionRange::Ends::below_most};
}

// What another value than the checkpoint's means to a run that goes on from it.
enum class ResumeRule {
  told,        // may change results: a line says so
  free,        // changes no result
  same_order,  // decides which samples come next: refused, but with --resume_with_new_data
  by_content,  // a name or a setting of something that is compared by its content
};

struct Option {
  std::string name = {};
  std::vector<std::string> other_names = {};
  OptionType type = OptionType::text;
  std::string help = {};
  std::function<Json()> read = {};              // null: none was given
  std::function<void(const Json&)> write = {};  // empty: no flag sets it
  std::optional<OptionRange> range = {};        // of every number
  std::vector<std::string> choices = {};        // of a choice
  OptionGroup group = OptionGroup::command;
  bool must_be_given = false;
  bool may_stand_alone = false;  // a flag without a value, which then stays as it is
  bool is_list = false;          // words with commas between them; a file may have a list in their place
  bool in_config = true;         // of the run
  ResumeRule resume_rule = ResumeRule::told;
  bool machine_alone = false;  // ranks of one run may differ in it
  bool of_stages = false;      // a context stage may set it (train/stage_plan.h)

  bool is_flag() const { return write != nullptr; }
  // Throws ConfigError: a number outside the range.
  void check(const Json& value) const;

  Option& required() {
    must_be_given = true;
    return *this;
  }
  Option& also_called(std::vector<std::string> names) {
    other_names = std::move(names);
    return *this;
  }
  Option& value_is_optional() {
    may_stand_alone = true;
    return *this;
  }
  Option& with_commas() {
    is_list = true;
    return *this;
  }
  Option& not_in_config() {
    in_config = false;
    return *this;
  }
  Option& on_resume(ResumeRule rule) {
    resume_rule = rule;
    return *this;
  }
  Option& of_machine() {
    machine_alone = true;
    return *this;
  }
  Option& in_stages() {
    of_stages = true;
    return *this;
  }
};

class OptionList {
 public:
  // Of the options that follow, with the rule that they have where they say no other.
  void group(OptionGroup group, ResumeRule rule = ResumeRule::told) {
    group_ = group;
    rule_ = rule;
  }

  // Each adds an option, whose default is the value now. Names have underscores.
  Option& text(const std::string& name, std::string& value, const std::string& help) {
    return plain(OptionType::text, name, value, help);
  }
  Option& path(const std::string& name, std::filesystem::path& value, const std::string& help) {
    return plain(OptionType::path, name, value, help);
  }
  Option& paths(const std::string& name, std::vector<std::filesystem::path>& value, const std::string& help) {
    return plain(OptionType::paths, name, value, help);
  }
  Option& flag(const std::string& name, bool& value, const std::string& help) {
    return flag(name, value, true, help);
  }
  // True where the value is `on`; another name for one choice of another option.
  template <typename T>
  Option& flag(const std::string& name, T& value, std::type_identity_t<T> on, const std::string& help) {
    T off = value;
    if constexpr (std::is_same_v<T, bool>) off = !on;
    return add({.name = name,
                .type = OptionType::boolean,
                .help = help,
                .read = [&value, on] { return Json(value == on); },
                .write =
                    [&value, on, off](const Json& json) {
                      if (json.get<bool>())
                        value = on;
                      else if (value == on)
                        value = off;
                    }});
  }
  // A whole number, of an integer, an enum or an optional integer; as text also 512k.
  template <typename T>
  Option& count(const std::string& name, T& value, OptionRange range, const std::string& help) {
    return number<int64_t>(OptionType::count, name, value, range, help);
  }
  // Of a double or an optional one.
  template <typename T>
  Option& real(const std::string& name, T& value, OptionRange range, const std::string& help) {
    return number<double>(OptionType::real, name, value, range, help);
  }
  Option& choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
                 const std::string& help);
  // Of two names of one value, the first is what is read.
  template <typename T>
  requires(!std::is_same_v<T, std::string>) Option& choice(
      const std::string& name, T& value, std::type_identity_t<std::span<const EnumName<T>>> names,
      const std::string& help) {
    std::vector<std::string> choices;
    for (const EnumName<T>& each : names) choices.emplace_back(each.name);
    const auto read = [&value, names, name] {
      for (const EnumName<T>& each : names)
        if (each.value == value) return Json(each.name);
      throw ConfigError(cat("--", name, " has a value that none of its names stands for"));
    };
    const auto write = [&value, names](const Json& json) {
      for (const EnumName<T>& each : names)
        if (json == each.name) value = each.value;
    };
    return add({.name = name,
                .type = OptionType::choice,
                .help = help,
                .read = read,
                .write = write,
                .choices = std::move(choices)});
  }
  template <NamedEnum E>
  Option& choice(const std::string& name, E& value, const std::string& help) {
    static constexpr auto kNames = enum_names(E{});
    return choice(name, value, kNames, help);
  }
  // Stands in config.json, and no flag sets it.
  Option& derived(const std::string& name, std::function<Json()> read);

  const std::vector<Option>& options() const { return options_; }
  // Throws ConfigError for the first number outside its range.
  void check() const;
  Json config() const;
  void keep(std::shared_ptr<const void> values) { kept_ = std::move(values); }

 private:
  Option& add(Option option);
  template <typename T>
  Option& plain(OptionType type, const std::string& name, T& value, const std::string& help) {
    return add({.name = name,
                .type = type,
                .help = help,
                .read = [&value] { return Json(value); },
                .write = [&value](const Json& json) { value = json.get<T>(); }});
  }
  template <typename Number, typename T>
  Option& number(OptionType type, const std::string& name, T& value, OptionRange range,
                 const std::string& help) {
    const auto read = [&value] {
      if constexpr (requires { value.has_value(); })
        return value ? Json(*value) : Json();
      else
        return Json(static_cast<Number>(value));
    };
    return add({.name = name,
                .type = type,
                .help = help,
                .read = read,
                .write = [&value](const Json& json) { value = static_cast<T>(json.get<Number>()); },
                .range = range});
  }

  OptionGroup group_ = OptionGroup::command;
  ResumeRule rule_ = ResumeRule::told;
  std::vector<Option> options_;
  std::shared_ptr<const void> kept_;
};

// Of a copy of `options`: for who reads them.
template <typename Options>
OptionList list_of_copy(const Options& options, void (*declare)(OptionList&, Options&)) {
  const auto copy = std::make_shared<Options>(options);
  OptionList list;
  declare(list, *copy);
  list.keep(copy);
  return list;
}

// Tokens of a sample at most, 2^40: beyond lie overflows.
inline constexpr int64_t kMostTokens = int64_t{1} << 40;
// Ranks of a run at most.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

// 3 -> "3", 5e-05 -> "5e-05"
std::string number_text(double value);

}  // namespace trireme
