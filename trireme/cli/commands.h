// The commands of the program. Each takes the words after its name and returns the program's exit code;
// errors come as exceptions (trireme/base/error.h), which main turns into exit codes.
#pragma once

#include <string>
#include <vector>

namespace trireme {

struct Command {
  std::string name;
  std::string summary;  // one line
  int (*run)(const std::vector<std::string>& arguments);
};

const std::vector<Command>& commands();
// Throws ConfigError that suggests the nearest name.
const Command& find_command(const std::string& name);
std::string commands_help();

// A command that is several (`trireme eval loss`): the first argument names one of `parts`, which gets the
// others. Prints their summaries where help is asked for. Throws ConfigError for another word, and without one.
int run_one_of(const std::string& command, const std::vector<Command>& parts,
               const std::vector<std::string>& arguments);

}  // namespace trireme
