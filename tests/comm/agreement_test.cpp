#include "trireme/comm/agreement.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <new>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

// What every rank is told when rank 1 alone fails by `error`.
template <typename Kind, typename Error>
std::vector<std::string> told_when_rank_1_fails(const Error& error) {
  std::vector<std::string> told(2);
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    Agreement agreement(*group, at::kCPU);
    told[static_cast<size_t>(world.rank())] = message_of<Kind>([&] {
      agreement.all_or_none("counting", [&] {
        if (world.rank() == 1) throw error;
      });
    });
  });
  return told;
}

TEST(Agreement, waits_for_rank_0_beyond_the_groups_timeout) {
  constexpr std::chrono::milliseconds kTimeout(500);
  std::vector<int> seen(2);
  std::atomic<int> made = 0;
  const auto body = [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    Agreement(*group, at::kCPU).while_rank_0_works("counting", [&] {
      EXPECT_EQ(world.rank(), 0);
      std::this_thread::sleep_for(3 * kTimeout);
      made = 7;
    });
    seen[static_cast<size_t>(world.rank())] = made;
  };
  run_ranks_as_threads(2, body, kTimeout);
  EXPECT_THAT(seen, ElementsAre(7, 7));
}

TEST(Agreement, tells_all_what_rank_0s_work_ended_with) {
  std::vector<std::string> told(2);
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    told[static_cast<size_t>(world.rank())] = message_of<DataError>([&] {
      Agreement(*group, at::kCPU).while_rank_0_works("counting", [] { throw DataError("x: too short"); });
    });
  });
  EXPECT_THAT(told[0], HasSubstr("x: too short"));
  EXPECT_THAT(told[1], HasSubstr("rank 0 failed while counting"));
}

TEST(Agreement, gives_every_rank_an_error_of_the_kind_of_the_one_that_failed) {
  const auto told = told_when_rank_1_fails<DataError>(DataError("x.bin: too short"));
  EXPECT_THAT(told[0], HasSubstr("rank 1 failed while counting"));
  EXPECT_EQ(told[1], "x.bin: too short");
}

TEST(Agreement, takes_missing_memory_for_an_error_that_the_user_can_mend) {
  const auto told = told_when_rank_1_fails<ConfigError>(std::bad_alloc());
  EXPECT_THAT(told[0], HasSubstr("rank 1 failed while counting"));
  EXPECT_THAT(told[1], HasSubstr("counting: out of host memory"));
}

TEST(Agreement, gives_every_rank_the_numbers_of_all_ranks) {
  run_ranks_as_threads(3, [](World& world) {
    const auto group = world.make_group("all", {{0, 1, 2}});
    Agreement agreement(*group, at::kCPU);
    const int64_t rank = world.rank();
    const std::vector<double> values{0.5 * static_cast<double>(rank), -static_cast<double>(rank)};
    EXPECT_THAT(agreement.largest(values), ElementsAre(1, 0));
    EXPECT_THAT(agreement.sum(values), ElementsAre(1.5, -3));
    EXPECT_THAT(agreement.gather(values),
                ElementsAre(ElementsAre(0, 0), ElementsAre(0.5, -1), ElementsAre(1, -2)));
    EXPECT_THAT(agreement.gather_one(rank), ElementsAre(0, 1, 2));
    EXPECT_THAT(agreement.gather_one(0.5 * static_cast<double>(rank)), ElementsAre(0, 0.5, 1));
    struct Numbers {
      int64_t whole;
      double real;
    };
    const std::vector<Numbers> of_ranks = agreement.gather_one(Numbers{-rank, values[0]});
    EXPECT_EQ(of_ranks[2].whole, -2);
    EXPECT_EQ(of_ranks[2].real, 1);
    EXPECT_EQ(agreement.largest(-rank), 0);
    EXPECT_EQ(agreement.sum((int64_t{1} << 60) + rank), (int64_t{3} << 60) + 3);
    EXPECT_EQ(agreement.of_rank_0(rank + 7), 7);
    EXPECT_TRUE(agreement.any(rank == 1));
    EXPECT_FALSE(agreement.any(false));
    EXPECT_TRUE(std::isnan(agreement.largest(std::vector{rank == 1 ? std::nan("") : 1.0}).front()));
  });
}

TEST(Agreement, gives_every_rank_the_text_of_the_first_rank_that_has_one) {
  std::vector<std::string> told(3), nothing(3, "?");
  run_ranks_as_threads(3, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1, 2}});
    Agreement agreement(*group, at::kCPU);
    const auto rank = static_cast<size_t>(world.rank());
    nothing[rank] = agreement.first_text("");
    told[rank] = agreement.first_text(rank == 0 ? "" : cat("x.bin is broken, says ", rank));
  });
  EXPECT_THAT(nothing, ::testing::Each(""));
  EXPECT_THAT(told, ::testing::Each("x.bin is broken, says 1"));
}

}  // namespace
}  // namespace trireme
