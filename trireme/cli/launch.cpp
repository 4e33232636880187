#include "trireme/cli/launch.h"

#include <algorithm>
#include <iostream>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/option_parser.h"
#include "trireme/launch/backlog_stream.h"

namespace trireme {
namespace {

bool same_file(int one, int other) {
  struct stat of_one = {}, of_other = {};
  return ::fstat(one, &of_one) == 0 && ::fstat(other, &of_other) == 0 && of_one.st_dev == of_other.st_dev &&
         of_one.st_ino == of_other.st_ino;
}

}  // namespace

std::optional<LaunchOptions> parse_launch_arguments(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  OptionParser parser(
      "launch",
      "Starts ranks of `trireme COMMAND...` on this machine and watches over them.\n"
      "Each line that a rank prints has [rank N] before it. Where the command is given --json, stdout\n"
      "is what rank 0 prints, as it is, for a program to read; all else goes to stderr.\n"
      "SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT ask the run to save and end, with code 75.",
      " -- COMMAND...");
  list_launch_options(parser, options);
  if (!parser.parse(arguments)) return std::nullopt;
  options.command = parser.rest();
  if (options.command.empty())
    throw ConfigError(
        "launch: no command to run; for example: trireme launch --nproc_per_node 2 -- train ...");
  return options;
}

int run_launch(const std::vector<std::string>& arguments) {
  std::optional<LaunchOptions> parsed = parse_launch_arguments(arguments);
  if (!parsed) return 0;
  LaunchOptions& options = *parsed;
  const std::vector<std::string> words(options.command.begin() + 1, options.command.end());
  if (std::ranges::any_of(words, asks_for_help))  // once, and of no rank
    return find_command(options.command[0]).run(words);
  options.terminal_columns = terminal_columns(STDOUT_FILENO);
  if (is_switched_on("json", options.command)) options.rank_stdout = RankStdout::of_rank_0;
  BacklogStream out(STDOUT_FILENO);
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) return launch(options, out, out);  // in the order of time
  BacklogStream err(STDERR_FILENO);
  return launch(options, out, err);
}

}  // namespace trireme
