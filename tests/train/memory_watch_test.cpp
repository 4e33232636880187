// Every rank's peak, and the one warning of the fullest.
#include "trireme/train/memory_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/device/peak_memory.h"

#include "tests/support/byte_units.h"
#include "tests/train/tiny_run.h"

namespace trireme::memory_watch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kGiB;
using ::testing::Not;
using testing::TinyRun;
using testing::train_on_ranks;

TEST(MemoryWatch, warns_once_of_the_rank_that_is_fullest) {
  run_ranks_as_threads(3, [](World& world) {
    const auto group = world.make_group("all", {{0, 1, 2}});
    Agreement agreement(*group, at::kCPU);
    MemoryWatch watch(at::kCPU, (world.rank() == 1 ? 10 : 100) * kGiB, agreement);
    EXPECT_EQ(watch.warning({70 * kGiB, 7 * kGiB, 60 * kGiB}, 0.75), "");
    EXPECT_EQ(watch.warning({89 * kGiB, 9 * kGiB, 60 * kGiB}, 0.9), "");
    EXPECT_EQ(watch.warning({75 * kGiB, 0, 0}, 0.75), "") << "above 75 %, not at it";
    EXPECT_THAT(watch.warning({76 * kGiB, 8 * kGiB, 60 * kGiB}, 0.75),
                AllOf(HasSubstr("warning: rank 1 has used 8.0 GiB, 80.0 % of the 10.0 GiB"),
                      HasSubstr("--memory_report")));
    EXPECT_EQ(watch.warning({99 * kGiB, 9 * kGiB, 99 * kGiB}, 0.75), "") << "once";
  });
}

TEST(MemoryWatch, gives_every_ranks_peak_to_the_metrics) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.engine.ulysses = 2;
  const auto quiet = train_on_ranks(2, options);
  const auto& of_ranks = quiet.records.at(9).memory_bytes_of_ranks;
  ASSERT_EQ(of_ranks.size(), 2U);
  // Ranks are threads of one process here.
  EXPECT_GT(of_ranks[0], 0);
  EXPECT_LE(of_ranks[1], peak_memory_bytes(at::kCPU));
  EXPECT_EQ(quiet.records.at(9).to_json()["memory_bytes_of_ranks"], Json(of_ranks));
  EXPECT_THAT(quiet.output, Not(HasSubstr("has used")));

  options.output_dir = run.folder() / "full";
  options.engine.host_memory_limit_bytes = peak_memory_bytes(at::kCPU);
  EXPECT_THAT(train_on_ranks(2, options).output, HasSubstr("of host memory that are its share"));
}

}  // namespace
}  // namespace trireme::memory_watch_test
