#include "trireme/launch/run_control.h"

#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/sha256.h"
#include "trireme/launch/report.h"
#include "trireme/launch/restart_rule.h"

namespace trireme {
namespace {

std::string stop_text(int signal) {
  return cat("trireme launch: stopped by signal ", signal, " (", ::strsignal(signal), ")\n");
}

class OneMachine : public RunControl {
 public:
  explicit OneMachine(const LaunchOptions& options) : options_(options), run_id_(run_id(options)) {}

  AttemptStart start(int attempt) override {
    attempt_ = attempt;
    AttemptStart start{attempt, run_id_};
    start.socket = std::make_unique<ListeningSocket>(options_.master_address, options_.master_port);
    start.port = start.socket->port();
    return start;
  }

  Conclusion conclude(const std::vector<RankEnd>& rank_ends, int stop_signal) override {
    return decide(options_, attempt_, rank_ends, stop_signal);
  }

 private:
  LaunchOptions options_;
  std::string run_id_;
  int attempt_ = 0;
};

}  // namespace

std::string run_id(const LaunchOptions& options) {
  constexpr int kRunIdBytes = 16;
  return options.run_id.empty() ? random_digits(kRunIdBytes) : options.run_id;
}

std::unique_ptr<RunControl> one_machine(const LaunchOptions& options) {
  return std::make_unique<OneMachine>(options);
}

Conclusion decide(const LaunchOptions& options, int attempt, const std::vector<RankEnd>& ends,
                  int stop_signal) {
  const Outcome outcome = judge(ends, stop_signal != 0);
  Conclusion conclusion;
  conclusion.code = outcome.code;
  conclusion.report =
      report(outcome, ends, options.nnodes == 1 ? RanksShown::here : RanksShown::by_their_launchers);
  if (stop_signal != 0) {
    conclusion.report += report_of_killed(ends, "when asked to stop");
    if (outcome.code != 0) conclusion.report += stop_text(stop_signal);
    return conclusion;
  }
  conclusion.again = outcome.may_restart && attempt < options.max_restarts;
  return conclusion;
}

Conclusion stopped_between_attempts(int stop_signal) {
  return {false, CommError::kExitCode, stop_text(stop_signal)};
}

}  // namespace trireme
