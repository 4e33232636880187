#include "trireme/base/stop_request.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(StopRequests, take_what_comes_within_two_seconds_of_the_first_as_the_same_request) {
  StopRequests requests;
  EXPECT_EQ(requests.take(1000), StopRequest::first);
  EXPECT_EQ(requests.take(1000.01), StopRequest::repeat);
  EXPECT_EQ(requests.take(1001.9), StopRequest::repeat);
  EXPECT_EQ(requests.take(1002.1), StopRequest::second);
  EXPECT_EQ(requests.take(1060), StopRequest::second);
}

TEST(StopRequests, know_a_signal_that_was_ignored_when_the_process_began) {
  ASSERT_FALSE(is_ignored(SIGUSR2));
  std::signal(SIGUSR2, SIG_IGN);
  EXPECT_TRUE(is_ignored(SIGUSR2));
  std::signal(SIGUSR2, SIG_DFL);
}

}  // namespace
}  // namespace trireme
