// Defines which signals ask a run to stop, and when a signal begins a new request. The launcher and the ranks
// share this rule (table in docs/launching.md).
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>

namespace trireme {

// Kill's default, Control-C, a closed terminal, Slurm's and other schedulers' warnings, Control-backslash.
constexpr std::array<int, 6> kStopSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};

// One request may arrive as several signals: GNU timeout and schedulers signal a process and its group, and
// Control-C reaches a rank from the terminal and through the launcher. Signals within this time after the
// first one belong to the same request.
constexpr double kOneRequestSeconds = 2;

// nohup ignores SIGHUP, and a shell ignores SIGINT of a background job: a signal that was ignored when the
// process began stays ignored.
inline bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_IGN;
}

enum class StopRequest { first, repeat, second };

// Classifies the stop signals that a process receives. Usable in a signal handler.
class StopRequests {
 public:
  // Records a stop signal that came at `seconds` of now_seconds().
  StopRequest take(double seconds) {
    int64_t first = 0;
    const auto now = static_cast<int64_t>(seconds * 1e9) + 1;
    if (first_nanoseconds_.compare_exchange_strong(first, now)) return StopRequest::first;
    return static_cast<double>(now - first) > kOneRequestSeconds * 1e9 ? StopRequest::second
                                                                       : StopRequest::repeat;
  }

 private:
  std::atomic<int64_t> first_nanoseconds_{0};  // 0: none yet
  static_assert(std::atomic<int64_t>::is_always_lock_free, "signal handlers use it");
};

}  // namespace trireme
