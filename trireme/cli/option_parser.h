// The flags of one command. A flag is written with underscores or hyphens, as `--flag value` or
// `--flag=value`; booleans as `--flag`, `--flag true` or `--flag false`, the way that Hugging Face's parser
// takes them. An unknown flag is a ConfigError that says what to give instead (foreign_flags.h) or suggests the
// nearest one; a wrong value one that quotes it.
//
//   OptionParser parser("train", "Trains a model on long sequences.");
//   parser.count("max_seq_length", options.max_seq_length, "tokens of a sample");
//   if (!parser.parse(arguments)) return 0;  // --help was asked and printed
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trireme {

// Whether the boolean --`name` is on among a command's arguments, for one who does not know its other flags.
bool is_switched_on(const std::string& name, const std::vector<std::string>& arguments);

class OptionParser {
 public:
  OptionParser(std::string command, const std::string& description);
  ~OptionParser();
  OptionParser& operator=(OptionParser&&) = delete;

  // Each declares one flag; `value` holds the default and is written by parse(). Names have underscores.
  void text(const std::string& name, std::string& value, const std::string& help);
  void path(const std::string& name, std::filesystem::path& value, const std::string& help);
  // One or more values: `--input a b` or `--input a --input b`.
  void paths(const std::string& name, std::vector<std::filesystem::path>& value, const std::string& help);
  void count(const std::string& name, int64_t& value, const std::string& help);    // not negative; takes 512k
  void integer(const std::string& name, int64_t& value, const std::string& help);  // of any sign; takes 512k
  void real(const std::string& name, double& value, const std::string& help);
  void flag(const std::string& name, bool& value, const std::string& help);
  void choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
              const std::string& help);
  // The flag just declared must be given.
  void required(const std::string& name) { required_.insert(name); }

  // Returns false after printing the help that was asked for. Throws ConfigError.
  bool parse(const std::vector<std::string>& arguments);
  bool given(const std::string& name) const { return given_.contains(name); }
  // Of all declared flags, in alphabetical order.
  std::vector<std::string> names() const;
  std::string help() const;

 private:
  struct Flag {
    bool boolean = false;
    bool many = false;
    std::vector<std::string> words;                            // filled by CLI11
    std::function<void(const std::vector<std::string>&)> set;  // converts and stores
  };
  Flag& add(const std::string& name, const std::string& type, const std::string& default_text,
            const std::string& help);
  [[noreturn]] void refuse_unknown(const std::string& name) const;
  // Takes hyphens, missing boolean values and many-valued flags to the one form `--name=value`.
  std::vector<std::string> normalise(const std::vector<std::string>& arguments) const;

  std::string command_;
  std::unique_ptr<CLI::App> app_;
  std::map<std::string, Flag> flags_;
  std::set<std::string> required_;
  std::set<std::string> given_;
};

}  // namespace trireme
