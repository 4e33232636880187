#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "trireme/base/error.h"
#include "trireme/launch/launch.h"

namespace trireme {
namespace {

template <typename Number>
std::function<void(const std::string&)> number(const std::string& flag, Number& target) {
  return [flag, &target](const std::string& text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw ConfigError(cat("launch: --", flag, " is '", quotation(text), "', expected a number"));
    }
    target = value;
  };
}

std::function<void(const std::string&)> text(std::string& target) {
  return [&target](const std::string& value) { target = value; };
}

// The edit distance: substitutions, insertions and deletions.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string launch_usage() {
  return "usage: trireme launch --nproc_per_node N [options] -- COMMAND...\n"
         "Starts N ranks of `trireme COMMAND...` on this machine and watches over them.\n"
         "\n"
         "  --nproc_per_node N    ranks on this machine\n"
         "  --max_restarts N      start the run again up to N times after a lost rank; training goes on from "
         "its\n"
         "                        last checkpoint (default 0)\n"
         "  --grace_seconds S     from SIGTERM to SIGKILL when the rest is ended (default 5)\n"
         "  --stop_seconds S      for the ranks to save and end when asked to stop (default 1800)\n"
         "  --log_dir DIR         keep each rank's output in DIR/attempt-A/rank-R.out and .err\n"
         "  --nnodes N            machines; run the launcher on each (default 1)\n"
         "  --node_rank N         which machine this is, from 0 (default 0)\n"
         "  --master_addr HOST    name or address of machine 0 (default 127.0.0.1)\n"
         "  --master_port PORT    free port of machine 0 (default: on one machine, the system chooses)\n"
         "  --join_seconds S      for the launchers of all machines to meet (default 600)\n"
         "  --secret_file FILE    what the launchers of several machines share (openssl rand -hex 32)\n"
         "\n"
         "Each line that a rank prints has [rank N] before it. Where the command is given --json, stdout\n"
         "is what rank 0 prints, as it is, for a program to read; all else goes to stderr.\n"
         "SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT ask the run to save and end, with code 75.\n";
}

LaunchOptions parse_launch_arguments(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  const std::map<std::string, std::function<void(const std::string&)>> flags{
      {"nproc_per_node", number("nproc_per_node", options.nproc)},
      {"max_restarts", number("max_restarts", options.max_restarts)},
      {"grace_seconds", number("grace_seconds", options.grace_seconds)},
      {"stop_seconds", number("stop_seconds", options.stop_seconds)},
      {"join_seconds", number("join_seconds", options.join_seconds)},
      {"log_dir", text(options.log_dir)},
      {"secret_file", text(options.secret_file)},
      {"nnodes", number("nnodes", options.nnodes)},
      {"node_rank", number("node_rank", options.node_rank)},
      {"master_port", number("master_port", options.master_port)},
      {"master_addr", text(options.master_address)},
  };
  size_t next = 0;
  while (next < arguments.size() && arguments[next].rfind("--", 0) == 0 && arguments[next] != "--") {
    const std::string& word = arguments[next++];
    const size_t equals = word.find('=');
    std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      const auto nearest = std::min_element(flags.begin(), flags.end(), [&](const auto& a, const auto& b) {
        return distance(a.first, name) < distance(b.first, name);
      });
      throw ConfigError(cat("launch: unknown flag ", quotation(word), "; did you mean --", nearest->first,
                            "? Flags of the command itself come after --"));
    }
    if (equals != std::string::npos) {
      flag->second(word.substr(equals + 1));
    } else if (next < arguments.size() && arguments[next] != "--") {
      flag->second(arguments[next++]);
    } else {
      throw ConfigError(cat("launch: --", name, " needs a value"));
    }
  }
  if (next < arguments.size() && arguments[next] == "--") ++next;
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
  if (options.command.empty()) {
    throw ConfigError(
        "launch: no command to run; for example: trireme launch --nproc_per_node 2 -- train ...");
  }
  return options;
}

}  // namespace trireme
