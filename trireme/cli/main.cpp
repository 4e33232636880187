// The program: finds the command and runs it.
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/option_parser.h"
#include "trireme/cli/run_program.h"

int main(int argc, char** argv) {
  return trireme::run_program([&] {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.empty() || trireme::asks_for_help(words[0]) || words[0] == "help") {
      std::cout << trireme::commands_help();
      return words.empty() ? trireme::ConfigError::kExitCode : 0;
    }
    if (words[0] == "--version" || words[0] == "-V") {
      std::cout << "trireme " << TRIREME_VERSION << "\n";
      return 0;
    }
    return trireme::find_command(words[0]).run({words.begin() + 1, words.end()});
  });
}
