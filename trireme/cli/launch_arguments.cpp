#include "trireme/cli/launch_arguments.h"

#include "trireme/base/error.h"
#include "trireme/cli/option_parser.h"
#include "trireme/launch/host_slots.h"

namespace trireme {

std::optional<LaunchOptions> parse_launch_arguments(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  OptionParser parser(
      "launch",
      "Starts ranks of `trireme COMMAND...` on this machine, or over ssh on those of --hostfile, and\n"
      "watches over them.\n"
      "Each line that a rank prints has [rank N] before it. Where the command is given --json, stdout\n"
      "is what rank 0 prints, as it is, for a program to read; all else goes to stderr.\n"
      "SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT ask the run to save and end, with code 75.",
      " -- COMMAND...");
  list_launch_options(parser, options);
  if (!parser.parse(arguments)) return std::nullopt;
  if (options.by_launcher) return options;
  const bool hosts = chooses_hosts(options.hosts);
  for (const char* flag : {"nproc_per_node", "nnodes", "node_rank"})
    if (hosts && parser.given(flag))
      throw ConfigError(
          cat("launch: --", flag,
              " cannot stand beside --hostfile, --include, --exclude, "
              "--num_nodes and --num_gpus: the slots of the hosts say how many ranks run where"));
  for (const char* flag : {"ssh_port", "launcher_args", "elastic"})
    if (options.hosts.hostfile.empty() && parser.given(flag))
      throw ConfigError(
          cat("launch: --", flag, " is of several hosts over ssh; name them by --hostfile FILE"));
  if (options.elastic && options.max_restarts == 0)
    throw ConfigError(
        "launch: --elastic starts the run again without lost hosts, as one of --max_restarts, and that is 0; "
        "give --max_restarts N");
  options.command = parser.rest();
  if (options.command.empty())
    throw ConfigError(
        "launch: no command to run; for example: trireme launch --nproc_per_node 2 -- train ...");
  return options;
}

}  // namespace trireme
