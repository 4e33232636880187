#include "trireme/cli/stop_signal.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(StopSignal, in_a_product_changes_no_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(compute_while_asked_to_stop(), ::testing::ExitedWithCode(0), ::testing::IsEmpty());
}

}  // namespace
}  // namespace trireme
