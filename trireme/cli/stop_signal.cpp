#include "trireme/cli/stop_signal.h"

#include <csignal>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/base/stop_request.h"

namespace trireme {
namespace {

constexpr std::string_view kNothingLost = " before training began; nothing was lost\n";

// A signal handler can reach only static objects.
struct StopState {
  // A launcher passes on what may have reached this rank already, and after seconds where it had no processor.
  StopRequests of_all, of_parent;
  std::atomic<pid_t> parent{0};
  std::atomic<bool> asked{false};
  std::atomic<bool> training{false};
  std::atomic<int> exit_code{0};
  std::atomic<bool> has_thread{false};
};

StopState& stop_state() {
  static StopState one;
  return one;
}

void on_stop_signal(int signal, siginfo_t* info, void* /*context*/) {
  StopState& state = stop_state();
  if (!state.training.load()) {
    for (const std::string_view text : {kAskedToStop, kNothingLost})
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(state.exit_code.load());
  }
  const double now = now_seconds();
  StopRequest request = state.of_all.take(now);
  if (info->si_pid == state.parent.load()) request = state.of_parent.take(now);
  if (request == StopRequest::second) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  state.asked.store(true);
}

// The handler must not interrupt a thread that computes. oneDNN's kernel of fp32 products (jit_avx512_common_gemm_f32,
// until oneDNN 3.11.2; its issue 4845) has its scratch memory on the heap as its stack, and the kernel would write
// the handler's frame, 3 KB, over whatever lies below.
void handle_on_one_thread(const sigset_t& signals) {
  if (stop_state().has_thread.exchange(true)) return;
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // of this thread and all that it starts
  std::thread([signals] {
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    while (true) ::pause();
  }).detach();
}

}  // namespace

void end_on_stop_request() {
  stop_state().exit_code.store(CommError::kExitCode);
  stop_state().parent.store(::getppid());
  struct sigaction action = {};
  action.sa_sigaction = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : kStopSignals) {
    if (is_ignored(signal)) continue;
    sigaction(signal, &action, nullptr);
    sigaddset(&taken, signal);
  }
  handle_on_one_thread(taken);
}

void save_on_stop_request() {
  stop_state().training.store(true);
}

const std::atomic<bool>& stop_requested() {
  return stop_state().asked;
}

}  // namespace trireme
