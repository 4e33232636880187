// The line through timed exchanges.
#include "trireme/measure/fitted_link.h"

#include <numeric>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

namespace trireme {
namespace {

// 20 us and 4 GB/s, each time off by the factor.
std::vector<TimedExchange> line(const std::vector<double>& factors) {
  std::vector<TimedExchange> timed;
  int64_t bytes = 4096;
  for (const double factor : factors) {
    timed.push_back({bytes, factor * (20e-6 + static_cast<double>(bytes) / 4e9)});
    bytes *= 4;
  }
  return timed;
}

TEST(FittedLink, is_the_line_that_the_times_lie_on) {
  const LinkSpeed speed = fit_link_speed(line({1, 1, 1, 1, 1, 1, 1}));
  EXPECT_NEAR(speed.latency_seconds, 20e-6, 1e-12);
  EXPECT_NEAR(speed.bytes_per_second, 4e9, 1);
  EXPECT_NEAR(speed.seconds(3, 8'000'000), 3 * 20e-6 + 2e-3, 1e-9);
  EXPECT_EQ(speed.seconds(3, 0), 0);
}

// 5 % of the largest time is ten times the latency.
TEST(FittedLink, small_exchanges_weigh_as_much_as_large_ones) {
  const LinkSpeed speed = fit_link_speed(line({1, 1, 1, 1, 1, 1, 1.05}));
  EXPECT_NEAR(speed.latency_seconds, 20e-6, 1e-6);
  EXPECT_NEAR(speed.bytes_per_second, 4e9, 0.05 * 4e9);
}

TEST(FittedLink, has_no_latency_below_zero) {
  const LinkSpeed speed = fit_link_speed({{1000, 1e-6}, {2000, 3e-6}});
  EXPECT_EQ(speed.latency_seconds, 0);
  EXPECT_GT(speed.bytes_per_second, 2000 / 3e-6);
  EXPECT_LT(speed.bytes_per_second, 1000 / 1e-6);
}

TEST(FittedLink, one_size_is_no_line) {
  EXPECT_THROW(fit_link_speed({{1000, 1e-6}, {1000, 2e-6}}), InternalError);
  EXPECT_THROW(fit_link_speed({}), InternalError);
}

TEST(FittedLink, is_measured_alike_on_every_rank) {
  constexpr int kRanks = 3;
  std::vector<FittedLink> rates(kRanks);
  run_ranks_as_threads(kRanks, [&](World& world) {
    std::vector<int> all(kRanks);
    std::iota(all.begin(), all.end(), 0);
    rates[static_cast<size_t>(world.rank())] = measure_link(*world.make_group("link", {all}), at::kCPU, 2);
  });
  for (const FittedLink& rate : rates) {
    ASSERT_EQ(rate.timed.size(), 7U);
    EXPECT_GT(rate.speed.bytes_per_second, 0);
    for (size_t i = 0; i < rate.timed.size(); ++i) {
      EXPECT_EQ(rate.timed[i].seconds, rates[0].timed[i].seconds);
      // Halves of 4 KiB, 16 KiB, ...
      EXPECT_EQ(rate.timed[i].sent_bytes, int64_t{4096} << (2 * i));
    }
  }
  Group one("link", nullptr, {0}, 0, std::chrono::milliseconds(0));
  EXPECT_TRUE(measure_link(one, at::kCPU, 2).timed.empty());
}

}  // namespace
}  // namespace trireme
