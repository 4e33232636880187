// The flags of one command, from its list of options. A flag is written with underscores or hyphens, as
// `--flag value` or `--flag=value`; booleans as `--flag`, `--flag true` or `--flag false`, the way that
// Hugging Face's parser takes them. An unknown flag is a ConfigError that says what to give instead
// (foreign_flags.h) or suggests the nearest one; a wrong value one that quotes it.
//
//   OptionParser parser("train", "Trains a model on long sequences.");
//   parser.count("max_seq_length", options.max_seq_length, at_least(1), "tokens of a sample");
//   if (!parser.parse(arguments)) return 0;  // --help was asked and printed
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/option_list.h"

namespace trireme {

// Whether the boolean --`name` is on among a command's arguments, for one who does not know its other flags.
bool is_switched_on(const std::string& name, const std::vector<std::string>& arguments);

// --help or -h.
bool asks_for_help(const std::string& word);

// What an option is given, by a flag or by a file.
struct GivenValue {
  std::string option;
  Json value;
  std::string source;  // "--zero", "run.yaml: zero", "ds.json: zero_optimization.stage"
};

// Where a file and what was given before it differ.
enum class Precedence {
  before_counts,  // a flag beats --config
  none,           // a ConfigError names both
};

class OptionParser : public OptionList {
 public:
  // `after_flags`: what follows them, which begins at `--` or at the first word that is no flag; empty:
  // nothing.
  OptionParser(std::string command, std::string description, std::string after_flags = "")
      : command_(std::move(command)),
        description_(std::move(description)),
        after_flags_(std::move(after_flags)) {}

  // Returns false after printing the help that was asked for. `read_files` may call add_file_values: it runs
  // before what must be given is asked for. Throws ConfigError.
  bool parse(const std::vector<std::string>& arguments, const std::function<void()>& read_files = {});
  // Sets options by a file. Throws ConfigError: a value outside its range, values that contradict each other.
  void add_file_values(const std::vector<GivenValue>& values, Precedence precedence);
  bool given(const std::string& name) const { return !source_of(name).empty(); }
  // By what an option was given; empty: by nothing.
  std::string source_of(const std::string& name) const;
  // Throws ConfigError that says what to give instead, or the nearest name.
  const Option& find(const std::string& name) const;
  // What to say of a flag that this command lacks; it may have nothing to say.
  void answer_unknown(std::function<std::optional<std::string>(const std::string& name)> answer) {
    answer_unknown_ = std::move(answer);
  }
  // What followed the flags.
  const std::vector<std::string>& rest() const { return rest_; }
  // Of all flags.
  std::vector<std::string> names() const;
  std::string help() const;

 private:
  // Writes values one after another, and throws ConfigError where one of them changes an earlier one.
  std::vector<GivenValue> write(const std::vector<GivenValue>& values) const;
  // Name -> words, of the one flag that a boolean without a value and hyphens are taken to.
  std::map<std::string, std::vector<std::string>> words_of(const std::vector<std::string>& arguments);

  std::string command_;
  std::string description_;
  std::string after_flags_;
  std::function<std::optional<std::string>(const std::string& name)> answer_unknown_;
  std::vector<std::string> rest_;
  std::vector<GivenValue> given_;  // with the values as the options keep them
};

// The flags of a command with their parser: for who reads its options beside it.
template <typename Flags>
struct Declared {
  explicit Declared(const std::string& command) : parser(command, "") { flags.declare(parser); }
  Declared& operator=(Declared&&) = delete;  // the parser refers to the flags

  Flags flags;
  OptionParser parser;
};

// The default, as a flag would give it; empty: none, or false.
std::string default_text(const Option& option);

}  // namespace trireme
