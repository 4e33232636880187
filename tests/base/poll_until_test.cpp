#include "trireme/base/poll_until.h"

#include <array>
#include <csignal>
#include <sys/time.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

int signals_taken = 0;

TEST(PollUntil, waits_for_news_or_the_deadline_and_for_no_signal) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { ++signals_taken; };
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 2000}, {0, 2000}}, never{};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);

  const auto deadline = steady_clock::now() + milliseconds(40);
  EXPECT_EQ(poll_until(ends[0], POLLIN, deadline), 0);
  EXPECT_GE(steady_clock::now(), deadline);
  EXPECT_GT(signals_taken, 0);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_GT(poll_until(ends[0], POLLIN, deadline), 0) << "news count after the deadline too";

  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  for (const int end : ends) ::close(end);
}

}  // namespace
}  // namespace trireme
