#include "trireme/launch/launch.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/launch/attempt.h"
#include "trireme/launch/launch_order.h"
#include "trireme/launch/launch_secret.h"
#include "trireme/launch/run_control.h"
#include "trireme/launch/start_ranks.h"

namespace trireme {
namespace {

// A rank's line on stderr waits this long for the same line of the other ranks.
constexpr double kGatherSeconds = 1;

std::filesystem::path make_log_folder(const LaunchOptions& options, int attempt) {
  if (options.log_dir.empty()) return {};
  std::filesystem::path folder = std::filesystem::path(options.log_dir) / cat("attempt-", attempt);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  // Later attempts warn because their log files cannot be written.
  if (error && attempt == options.first_attempt)
    throw ConfigError(
        cat("launch: cannot make the folder ", folder.string(), " for --log_dir: ", error.message()));
  return folder;
}

double seconds_before_restart(int attempt) {
  return std::min(5.0, 0.5 * std::ldexp(1.0, std::min(attempt, 10)));
}

}  // namespace

int launch(const LaunchOptions& given, std::ostream& out, std::ostream& err) {
  check_launch_options(given);
  LaunchOptions options = given;
  if (options.master_address.empty()) options.master_address = "127.0.0.1";
  const std::string secret = launch_secret(options);
  raise_limit_of_open_files();
  TakenSignals signals;
  const std::unique_ptr<RunControl> control = options.nnodes == 1 ? one_machine(options)
                                              : options.node_rank == 0
                                                  ? first_machine(options, secret, signals, err)
                                                  : other_machine(options, secret, signals, err);
  for (int attempt = options.first_attempt;; ++attempt) {
    AttemptStart start = control->start(attempt);
    if (start.over) {
      err << start.over->report << std::flush;
      return start.over->code;
    }
    const std::filesystem::path logs = make_log_folder(options, start.attempt);
    std::vector<RankProcess> ranks = start_ranks(options, start, secret);
    OutputSink out_sink(out, options.terminal_columns > 0);
    OutputSink err_sink(err, false, options.nproc > 1 ? kGatherSeconds : 0);
    const AttemptResult result = watch(std::move(ranks), options, signals, *control,
                                       {out_sink, err_sink, err, options.rank_stdout, logs});
    out_sink.finish();
    err_sink.finish();
    const Conclusion conclusion = control->conclude(result.ends, result.stop_signal);
    err << conclusion.report << std::flush;
    if (!conclusion.again) return conclusion.code;
    if (signals.wait(seconds_before_restart(attempt))) {
      const Conclusion stopped = stopped_between_attempts(signals.stop_signal());
      control->cancel(stopped);
      err << stopped.report << std::flush;
      return stopped.code;
    }
    if (options.by_launcher && options.node_rank > 0) continue;  // machine 0 says it in the same output
    err << kAgainWords << attempt + 1;
    if (options.node_rank == 0) err << " of " << options.max_restarts;
    err << ")\n" << std::flush;
  }
}

}  // namespace trireme
