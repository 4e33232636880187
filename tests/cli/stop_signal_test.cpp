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

// A rank is asked to stop, after more than one request's time by its parent, and then by another process. Dies as
// the rank does.
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
    ::kill(::getpid(), SIGUSR1);
    while (!stop_requested()) pause(1);
    if (::write(asked[1], "x", 1) != 1) std::_Exit(1);
    while (true) ::pause();
  }
  ::close(asked[1]);
  char byte = 0;
  if (::read(asked[0], &byte, 1) != 1) std::_Exit(1);
  pause(static_cast<int>(kOneRequestSeconds * 1000) + 200);
  ::kill(rank, SIGTERM);
  pause(500);
  if (::fork() == 0) {
    ::kill(rank, SIGUSR2);
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(rank, &status, 0);
  std::raise(WTERMSIG(status));
  std::_Exit(1);
}

TEST(StopSignal, that_the_launcher_passes_on_late_is_no_second_request_as_one_of_anybody_else_is) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ask_a_rank_and_pass_it_on_late(), ::testing::KilledBySignal(SIGUSR2), ::testing::IsEmpty());
}

TEST(StopSignal, in_a_product_changes_no_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(compute_while_asked_to_stop(), ::testing::ExitedWithCode(0), ::testing::IsEmpty());
}

}  // namespace
}  // namespace trireme
