#include "trireme/launch/launch_order.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/parse_whole.h"
#include "trireme/base/poll_until.h"
#include "trireme/base/stop_request.h"

namespace trireme {
namespace {

constexpr size_t kLargestOrder_bytes = size_t{64} << 20;

constexpr std::array<std::string_view, 11> kPassedPrefixes{
    "NCCL_", "GLOO_", "UCX_", "FI_", "TORCH_", "PYTORCH_", "HF_", "OMP_", "MKL_", "KMP_", "GOMP_"};

constexpr std::chrono::minutes kSilence(1);

// Reads stdin up to each line's end; nothing at its end, or when nothing comes for a minute.
class StdinLines {
 public:
  std::optional<std::string> next(size_t largest_bytes) {
    for (;;) {
      const size_t end = text_.find('\n');
      if (end != std::string::npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      std::array<char, 4096> buffer{};
      if (poll_until(STDIN_FILENO, POLLIN, std::chrono::steady_clock::now() + kSilence) == 0)
        return std::nullopt;
      const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0 || text_.size() > largest_bytes) return std::nullopt;
      text_.append(buffer.data(), static_cast<size_t>(count));
    }
  }

 private:
  std::string text_;
};

// The signal of a "stop SIGNAL" line; SIGTERM where it names no stop signal.
int signal_of(std::string_view line) {
  line.remove_prefix(std::string_view(kStopWord).size());
  const int signal = parse_whole<int>(line).value_or(0);
  return contains(kStopSignals, signal) ? signal : SIGTERM;
}

// On a thread without signals, so that they reach the launcher's own.
void obey_stdin(StdinLines lines) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([lines = std::move(lines)]() mutable {
    constexpr size_t kLargestLine_bytes = 100;
    bool asked = false;  // a second request would end ranks that are saving
    while (const auto line = lines.next(kLargestLine_bytes)) {
      if (!line->starts_with(kStopWord)) continue;
      asked = true;
      ::kill(::getpid(), signal_of(*line));
    }
    if (!asked) ::kill(::getpid(), SIGTERM);
  }).detach();  // it waits for input until the process ends
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Json to_json(const LaunchOrder& order) {
  const LaunchOptions& o = order.options;
  return {{"nproc_of_nodes", o.nproc_of_nodes},
          {"node_rank", o.node_rank},
          {"master_addr", o.master_address},
          {"master_port", o.master_port},
          {"max_restarts", o.max_restarts},
          {"grace_seconds", o.grace_seconds},
          {"stop_seconds", o.stop_seconds},
          {"join_seconds", o.join_seconds},
          {"log_dir", o.log_dir},
          {"program", o.program},
          {"command", o.command},
          {"stdout_of_rank_0", o.rank_stdout == RankStdout::of_rank_0},
          {"visible_devices", o.visible_devices},
          {"run_id", o.run_id},
          {"first_attempt", o.first_attempt},
          {"first_ranks", o.first_ranks},
          {"secret", order.secret},
          {"environment", order.environment}};
}

LaunchOrder parse_launch_order(const Json& json) {
  const std::string origin = "the order of the launcher that started this one";
  constexpr double kLongest_seconds = 7 * 86400;
  LaunchOrder order;
  LaunchOptions& o = order.options;
  for (const Json& ranks : array_value(json, "nproc_of_nodes", origin))
    o.nproc_of_nodes.push_back(static_cast<int>(whole_number(ranks, {1, 4096}, origin)));
  o.by_launcher = true;
  o.nnodes = static_cast<int>(o.nproc_of_nodes.size());
  o.node_rank = static_cast<int>(whole_number(json, "node_rank", {0, o.nnodes - 1}, origin));
  o.nproc = o.ranks_of(o.node_rank);
  o.master_address = text_value(json, "master_addr", origin);
  o.master_port = static_cast<int>(whole_number(json, "master_port", {0, 65535}, origin));
  o.max_restarts = static_cast<int>(whole_number(json, "max_restarts", {0, 1000000}, origin));
  o.grace_seconds = finite_number(json, "grace_seconds", 0, kLongest_seconds, origin);
  o.stop_seconds = finite_number(json, "stop_seconds", 0, kLongest_seconds, origin);
  o.join_seconds = finite_number(json, "join_seconds", 0, kLongest_seconds, origin);
  o.log_dir = text_value(json, "log_dir", origin);
  o.program = text_value(json, "program", origin);
  o.visible_devices = text_value(json, "visible_devices", origin);
  o.run_id = text_value(json, "run_id", origin);
  o.first_attempt = static_cast<int>(whole_number(json, "first_attempt", {0, 1000000}, origin));
  o.first_ranks = static_cast<int>(whole_number(json, "first_ranks", {0, 1 << 30}, origin));
  if (true_or_false(json, "stdout_of_rank_0", origin)) o.rank_stdout = RankStdout::of_rank_0;
  order.secret = text_value(json, "secret", origin);
  try {
    o.command = array_value(json, "command", origin).get<std::vector<std::string>>();
    order.environment = object_value(json, "environment", origin).get<std::map<std::string, std::string>>();
  } catch (const Json::exception& error) {
    throw DataError(cat(origin, ": ", error.what()));
  }
  return order;
}

std::map<std::string, std::string> passed_environment() {
  std::map<std::string, std::string> passed;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto begins = [&](std::string_view prefix) { return text.starts_with(prefix); };
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos &&
        std::any_of(kPassedPrefixes.begin(), kPassedPrefixes.end(), begins))
      passed.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return passed;
}

LaunchOptions take_launch_order() {
  StdinLines lines;
  auto line = lines.next(kLargestOrder_bytes);
  while (line && *line == kSignOfLife) line = lines.next(kLargestOrder_bytes);  // another host is slower
  if (!line)
    throw CommError(
        "launch: the launcher that started this one with --by_launcher ended before it gave its order");
  LaunchOrder order = parse_launch_order(parse_json(*line, "the order of a launcher on stdin"));
  for (const auto& [name, value] : order.environment) ::setenv(name.c_str(), value.c_str(), /*replace=*/1);
  ::setenv("TRIREME_SECRET", order.secret.c_str(), /*replace=*/1);
  obey_stdin(std::move(lines));
  return std::move(order.options);
}

}  // namespace trireme
