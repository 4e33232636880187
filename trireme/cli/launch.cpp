#include "trireme/cli/launch.h"

#include <algorithm>
#include <iostream>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/launch_arguments.h"
#include "trireme/cli/option_parser.h"
#include "trireme/cli/process_options.h"
#include "trireme/launch/backlog_stream.h"
#include "trireme/launch/host_launcher.h"
#include "trireme/launch/launch_order.h"
#include "trireme/launch/several_hosts.h"

namespace trireme {
namespace {

bool same_file(int one, int other) {
  struct stat of_one = {}, of_other = {};
  return ::fstat(one, &of_one) == 0 && ::fstat(other, &of_other) == 0 && of_one.st_dev == of_other.st_dev &&
         of_one.st_ino == of_other.st_ino;
}

// As the launcher on each host of a list, which another launcher started.
int launch_by_order() {
  std::cerr << kReadyLine << "\n" << std::flush;
  LaunchOptions options = take_launch_order();
  options.on_listening = [](int port) { std::cerr << kListensWords << port << "\n" << std::flush; };
  BacklogStream out(STDOUT_FILENO), err(STDERR_FILENO);
  return launch(options, out, err);
}

// A list of this machine alone needs no other launcher.
bool is_here(const std::vector<HostSlots>& hosts) {
  return hosts.size() == 1 && is_this_machine(hosts[0].host);
}

std::vector<HostSlots> hosts_of(const HostOptions& options) {
  const bool from_file = !options.hostfile.empty();
  std::vector<HostSlots> hosts;
  if (from_file) hosts = choose_hosts(options, 0);
  if (const auto visible = environment("CUDA_VISIBLE_DEVICES"); visible && (!from_file || is_here(hosts)))
    throw ConfigError(cat("launch: CUDA_VISIBLE_DEVICES=", *visible,
                          " and --num_gpus, --include, --exclude or --hostfile "
                          "both choose GPUs of this machine; unset it, or give --nproc_per_node alone"));
  return from_file ? hosts : choose_hosts(options, cuda_devices());
}

}  // namespace

int run_launch(const std::vector<std::string>& arguments) {
  std::optional<LaunchOptions> parsed = parse_launch_arguments(arguments);
  if (!parsed) return 0;
  LaunchOptions& options = *parsed;
  if (options.by_launcher) return launch_by_order();
  const std::vector<std::string> words(options.command.begin() + 1, options.command.end());
  if (std::ranges::any_of(words, asks_for_help))  // once, and of no rank
    return find_command(options.command[0]).run(words);
  options.terminal_columns = terminal_columns(STDOUT_FILENO);
  if (is_switched_on("json", options.command)) options.rank_stdout = RankStdout::of_rank_0;
  std::vector<HostSlots> hosts;
  if (chooses_hosts(options.hosts)) hosts = hosts_of(options.hosts);
  if (is_here(hosts)) {
    options.nproc = static_cast<int>(hosts[0].slots.size());
    options.visible_devices = slot_list(hosts[0].slots);
    hosts.clear();
  }
  const auto launch_there = [&](std::ostream& out, std::ostream& err) {
    return hosts.empty() ? launch(options, out, err) : launch_on_hosts(options, hosts, out, err);
  };
  BacklogStream out(STDOUT_FILENO);
  if (same_file(STDOUT_FILENO, STDERR_FILENO)) return launch_there(out, out);  // in the order of time
  BacklogStream err(STDERR_FILENO);
  return launch_there(out, err);
}

}  // namespace trireme
