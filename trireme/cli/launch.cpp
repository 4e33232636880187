#include "trireme/cli/launch.h"

#include <iostream>
#include <unistd.h>

#include "trireme/cli/option_parser.h"
#include "trireme/launch/launch.h"

namespace trireme {

int run_launch(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    std::cout << launch_usage();
    return 0;
  }
  LaunchOptions options = parse_launch_arguments(arguments);
  options.terminal = ::isatty(STDOUT_FILENO) == 1;
  if (is_switched_on("json", options.command)) options.rank_stdout = RankStdout::of_rank_0;
  return launch(options, std::cout, std::cerr);
}

}  // namespace trireme
