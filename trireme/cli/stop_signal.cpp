#include "trireme/cli/stop_signal.h"

#include <csignal>
#include <ctime>

namespace trireme {
namespace {

struct StopRequest {
  std::atomic<bool> asked{false};
  std::atomic<int64_t> first_seconds{0};
};

// A signal handler can reach nothing but statics.
StopRequest& request() {
  static StopRequest one;
  return one;
}

int64_t monotonic_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

void on_signal(int signal) {
  // Control-C reaches a rank twice, from the terminal and through the launcher: that is one request.
  constexpr int64_t kOneRequestSeconds = 2;
  if (!request().asked.exchange(true)) {
    request().first_seconds.store(monotonic_seconds());
  } else if (monotonic_seconds() - request().first_seconds.load() > kOneRequestSeconds) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

const std::atomic<bool>& watch_stop_signals() {
  request().asked.store(false);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  return request().asked;
}

}  // namespace trireme
