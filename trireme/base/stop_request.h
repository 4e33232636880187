// Which signals ask a run to stop, and which of them begin a new request: one rule for the launcher and for
// ranks (docs/launching.md has the table).
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>

namespace trireme {

// Kill's default, Control-C, a closed terminal, Slurm's and other schedulers' warnings, Control-backslash.
constexpr std::array<int, 6> kStopSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};

// GNU timeout and schedulers signal a process and its group; Control-C reaches a rank from the terminal and through
// the launcher. What comes within this time of the first signal is the same request.
constexpr double kOneRequestSeconds = 2;

// nohup ignores SIGHUP, and a shell ignores SIGINT of a background job: what was ignored when the process began
// stays ignored.
inline bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_IGN;
}

enum class StopRequest { first, repeat, second };

// The stop signals that a process has been sent. Usable in a signal handler.
class StopRequests {
 public:
  // A stop signal came, at `seconds` of now_seconds().
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
