#include "trireme/cli/launch.h"

#include <algorithm>
#include <iostream>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/foreign_flags.h"
#include "trireme/cli/option_parser.h"
#include "trireme/launch/backlog_stream.h"
#include "trireme/launch/launch.h"

namespace trireme {
namespace {

// Flags of other launchers, which this one does not have.
void refuse_foreign_flags(const std::vector<std::string>& arguments) {
  for (size_t at = 0; at < arguments.size() && arguments[at].starts_with("--") && arguments[at] != "--";
       ++at) {
    const size_t equals = arguments[at].find('=');
    std::string name = arguments[at].substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const auto answer = foreign_flag_answer(name);
    if (answer && launch_usage().find(cat("--", name, " ")) == std::string::npos)
      throw ConfigError(cat("trireme launch has no flag --", name, ": ", *answer));
    if (equals == std::string::npos) ++at;  // its value
  }
}

bool asks_for_help(const std::vector<std::string>& command) {
  return command.size() > 1 && (std::find(command.begin() + 1, command.end(), "--help") != command.end() ||
                                std::find(command.begin() + 1, command.end(), "-h") != command.end());
}

bool same_file(int one, int other) {
  struct stat of_one = {}, of_other = {};
  return ::fstat(one, &of_one) == 0 && ::fstat(other, &of_other) == 0 && of_one.st_dev == of_other.st_dev &&
         of_one.st_ino == of_other.st_ino;
}

}  // namespace

int run_launch(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    std::cout << launch_usage();
    return 0;
  }
  refuse_foreign_flags(arguments);
  LaunchOptions options = parse_launch_arguments(arguments);
  if (asks_for_help(options.command)) {  // once, and of no rank
    return find_command(options.command[0]).run({options.command.begin() + 1, options.command.end()});
  }
  options.terminal_columns = terminal_columns(STDOUT_FILENO);
  if (is_switched_on("json", options.command)) options.rank_stdout = RankStdout::of_rank_0;
  BacklogStream out(STDOUT_FILENO);
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) return launch(options, out, out);  // in the order of time
  BacklogStream err(STDERR_FILENO);
  return launch(options, out, err);
}

}  // namespace trireme
