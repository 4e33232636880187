#include "trireme/launch/taken_signals.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

// The next signal that came, 0 when there is none.
int read_signal(int descriptor) {
  signalfd_siginfo info{};
  return ::read(descriptor, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace

TakenSignals::TakenSignals() {
  sigset_t taken;
  ::sigemptyset(&taken);
  ::sigaddset(&taken, SIGCHLD);
  for (const int signal : kStopSignals)
    if (!is_ignored(signal)) ::sigaddset(&taken, signal);
  ::pthread_sigmask(SIG_BLOCK, &taken, nullptr);
  descriptor_ = FileDescriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_.is_open()) throw InternalError(cat("signalfd: ", std::strerror(errno)));
}

TakenSignals::~TakenSignals() {
  while (read_signal(descriptor()) != 0) {
  }
}

TakenSignals::StopNews TakenSignals::next_request() {
  StopNews news;
  while (const int signal = read_signal(descriptor())) {
    if (signal == SIGCHLD) continue;
    const StopRequest request = requests_.take(now_seconds());
    if (request == StopRequest::repeat) continue;
    if (request == StopRequest::first) stop_signal_ = signal;
    news = {signal, request};
  }
  return news;
}

bool TakenSignals::wait(double seconds) {
  const double end = now_seconds() + seconds;
  for (double left = seconds; left > 0; left = end - now_seconds()) {
    pollfd waiting{descriptor(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(std::min(left, 1.0) * 1e3) + 1);
    next_request();
    if (stop_signal_ != 0) return true;
  }
  return stop_signal_ != 0;
}

}  // namespace trireme
