// Who is found lost, by whom and when; the clock is the test's.
#include "trireme/comm/heartbeat.h"

#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/launch/launch.h"

namespace trireme::heartbeat_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class Signs : public ::testing::Test {
 protected:
  Signs() {
    for (int rank = 0; rank < 3; ++rank) ranks_.emplace_back(store_, rank, 3, 10.0);
  }
  std::optional<std::string> look(int rank, double now) {
    return ranks_[static_cast<size_t>(rank)].look(now);
  }
  void leave(int rank, bool by_error, milliseconds for_others = milliseconds(1)) {
    ranks_[static_cast<size_t>(rank)].leave(by_error, milliseconds(1), for_others);
  }
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  std::vector<LifeSigns> ranks_;
};

TEST_F(Signs, of_ranks_that_live_are_enough_however_long_it_takes) {
  for (int second = 0; second < 100; second += 4)
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(look(rank, second), std::nullopt) << rank << " at " << second;
}

TEST_F(Signs, that_end_are_missed_by_the_rank_before_and_all_are_told_who_is_lost) {
  for (int rank = 0; rank < 3; ++rank) look(rank, 0);
  for (int second = 1; second <= 10; ++second)
    for (const int rank : {0, 2}) EXPECT_EQ(look(rank, second), std::nullopt);
  EXPECT_EQ(look(2, 12), std::nullopt) << "it watches rank 0";
  ASSERT_TRUE(look(0, 12).has_value()) << "it read the last one at 1";
  EXPECT_THAT(*look(0, 12), HasSubstr("rank 1 has given no sign of life for 11 s"));
  EXPECT_THAT(*look(2, 12), HasSubstr("rank 1 has given no sign"));
}

TEST_F(Signs, of_a_rank_that_never_came_are_missed_as_well) {
  for (int second = 0; second <= 10; ++second) EXPECT_EQ(look(1, second), std::nullopt);
  EXPECT_THAT(look(1, 11).value_or(""), HasSubstr("rank 2 has given no sign"));
}

TEST_F(Signs, of_a_rank_that_left_in_order_are_not_missed) {
  for (int rank = 0; rank < 3; ++rank) look(rank, 0);
  leave(1, false);
  for (int second = 1; second < 100; second += 4)
    for (const int rank : {0, 2}) EXPECT_EQ(look(rank, second), std::nullopt);
}

TEST_F(Signs, tell_at_once_of_a_rank_that_ended_by_an_error) {
  for (int rank = 0; rank < 3; ++rank) look(rank, 0);
  leave(1, true);
  leave(2, true);
  EXPECT_EQ(look(0, 1).value_or(""), "rank 1 ended by an error; its own message says why")
      << "the first counts";
}

TEST_F(Signs, keep_rank_0_which_may_hold_the_store_until_the_others_have_left) {
  leave(1, false);
  EXPECT_ANY_THROW(leave(0, false)) << "it waited for rank 2 as long as it may";
  leave(2, false);
  EXPECT_NO_THROW(leave(0, false));
}

TEST_F(Signs, keep_rank_0_no_longer_once_another_is_lost) {
  leave(1, false);
  const auto rank_0 = std::async(std::launch::async, [&] { leave(0, false, std::chrono::hours(1)); });
  EXPECT_EQ(rank_0.wait_for(milliseconds(100)), std::future_status::timeout);
  leave(2, true);
  rank_0.wait();
}

TEST(Heartbeat, calls_with_the_lost_rank_s_name_while_the_rank_itself_waits_for_ever) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const HeartbeatPace pace{milliseconds(5), milliseconds(50), milliseconds(5)};
  std::promise<std::string> told;
  const Heartbeat heart(store, 0, 2, pace, [&](const CommError& error) { told.set_value(error.what()); });
  EXPECT_THAT(told.get_future().get(), HasSubstr("says rank 0: rank 1 has given no sign of life"));
}

// Else most survivors would end by SIGKILL, without a word on whom they lost.
TEST(Heartbeat, speaks_of_a_loss_before_the_launcher_kills_the_rank) {
  const HeartbeatPace pace;
  EXPECT_LT(pace.period + pace.grace,
            std::chrono::duration<double>(kAskedAfterSeconds + LaunchOptions().grace_seconds));
}

TEST(Heartbeat, tells_the_others_of_an_error_that_unwinds_this_rank_and_of_nothing_else) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const HeartbeatPace pace{milliseconds(5), std::chrono::hours(1), milliseconds(5)};
  std::promise<std::string> told;
  const Heartbeat other(store, 0, 3, pace, [&](const CommError& error) { told.set_value(error.what()); });
  auto news = told.get_future();
  {
    const Heartbeat in_order(store, 1, 3, pace, [](const CommError&) { FAIL(); });
  }
  EXPECT_EQ(news.wait_for(milliseconds(50)), std::future_status::timeout);
  try {
    const Heartbeat broken(store, 2, 3, pace, [](const CommError&) { FAIL(); });
    throw std::runtime_error("out of memory");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(news.get(), HasSubstr("rank 2 ended by an error"));
}

class StoreOfRank0 : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    if (gone) throw std::runtime_error("the connection was closed");
    return HashStore::check(keys);
  }
  int64_t signs_of_rank_1() { return check({"sign/1"}) ? std::stoll(get_to_str("sign/1")) : 0; }
  std::atomic<bool> gone = false;
};

// Rank 0 waits for the others for a time alone; one that still ends by then has lost nobody.
TEST(Heartbeat, takes_a_store_that_is_gone_for_a_loss_unless_rank_0_had_left_in_order) {
  for (const bool left : {false, true}) {
    const auto store = c10::make_intrusive<StoreOfRank0>();
    const HeartbeatPace pace{milliseconds(5), std::chrono::hours(1), milliseconds(5)};
    std::promise<std::string> told;
    auto news = told.get_future();
    const Heartbeat slow(store, 1, 2, pace, [&](const CommError& error) { told.set_value(error.what()); });
    if (left) {
      EXPECT_THROW(LifeSigns(store, 0, 2, 60).leave(false, milliseconds(1), {}), CommError);
    }
    const int64_t signs = store->signs_of_rank_1();
    while (store->signs_of_rank_1() < signs + 2) std::this_thread::sleep_for(milliseconds(1));
    store->gone = true;
    if (left) {
      EXPECT_EQ(news.wait_for(milliseconds(100)), std::future_status::timeout);
    } else {
      EXPECT_THAT(news.get(), HasSubstr("the store where the ranks met cannot be reached"));
    }
  }
}

}  // namespace
}  // namespace trireme::heartbeat_test
