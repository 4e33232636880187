#include "trireme/cli/stop_signal.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/stop_request.h"
#include "trireme/kernels/product.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

// Products of a depth at which oneDNN's kernel computes with its stack on the heap, while signals come. Not 0
// where none of them was taken, or none came.
[[noreturn]] void compute_while_asked_to_stop() {
  const auto end = Clock::now() + std::chrono::milliseconds(500);  // all of it one request
  end_on_stop_request();
  save_on_stop_request();
  std::thread([end] {
    while (Clock::now() < end) {
      ::kill(::getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }).detach();
  at::set_num_threads(1);
  const at::Tensor a = at::rand({64, 352}), b = at::rand({352, 64});
  const at::Tensor first = product(a, b);
  bool same = true;
  while (Clock::now() < end) same &= product(a, b).equal(first);
  std::_Exit(same && stop_requested().load() ? 0 : 1);
}

// A rank is asked to stop, and after more than one request's time its parent passes that on. Dies as the rank
// does, which is killed in the end.
[[noreturn]] void ask_a_rank_and_pass_it_on_late() {
  const auto pause = [](int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  };
  std::array<int, 2> asked{};
  if (::pipe(asked.data()) != 0) std::_Exit(1);
  const pid_t rank = ::fork();
  if (rank == 0) {
    end_on_stop_request();
    save_on_stop_request();
    ::kill(::getpid(), SIGINT);
    while (!stop_requested()) pause(1);
    if (::write(asked[1], "x", 1) != 1) std::_Exit(1);
    while (true) ::pause();
  }
  char byte = 0;
  if (::read(asked[0], &byte, 1) != 1) std::_Exit(1);
  pause(static_cast<int>(kOneRequestSeconds * 1000) + 200);
  ::kill(rank, SIGTERM);
  pause(300);
  ::kill(rank, SIGKILL);
  int status = 0;
  ::waitpid(rank, &status, 0);
  std::raise(WTERMSIG(status));
  std::_Exit(1);
}

TEST(StopSignal, that_the_launcher_passes_on_late_is_no_second_request) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ask_a_rank_and_pass_it_on_late(), ::testing::KilledBySignal(SIGKILL), ::testing::IsEmpty());
}

TEST(StopSignal, in_a_product_changes_no_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(compute_while_asked_to_stop(), ::testing::ExitedWithCode(0), ::testing::IsEmpty());
}

}  // namespace
}  // namespace trireme
