// A run whose machines see different folders at --output_dir.
#include "trireme/train/shared_output_dir.h"

#include <sched.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::shared_output_dir_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TinyRun;

// What each of two ranks is told where rank 1 sees the folder as `by_rank_1`.
std::vector<std::string> told_of(const fs::path& folder, const fs::path& by_rank_1) {
  std::vector<std::string> told(2);
  std::optional<RunLock> lock, none;
  lock.emplace(folder, "launch", [](const std::string&) {});
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    Agreement agreement(*group, at::kCPU);
    const int rank = world.rank();
    told[static_cast<size_t>(rank)] = message_of<ConfigError>([&] {
      check_output_dir_is_shared(rank == 0 ? folder : by_rank_1, rank == 0 ? lock : none, rank, agreement);
    });
  });
  return told;
}

TEST(SharedOutputDir, may_be_seen_late_and_under_another_name) {
  const testing::TemporaryFolder folder;
  const std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fs::create_symlink(folder.path() / "run", folder.path() / "link");
  });
  EXPECT_THAT(told_of(folder.path() / "run", folder.path() / "link"), ElementsAre("no error", "no error"));
}

// Containers may forbid it.
bool threads_may_have_working_directories() {
  bool may = false;
  std::jthread([&] { may = ::unshare(CLONE_FS) == 0; }).join();
  return may;
}

// As on two machines: the ranks' threads have working directories of their own.
TEST(SharedOutputDir, is_asked_of_a_run_before_its_first_step) {
  if (!threads_may_have_working_directories()) GTEST_SKIP() << "unshare is forbidden here";
  const TinyRun tiny;
  TrainOptions options = tiny.options("run");
  options.output_dir = "run";
  std::vector<std::string> told(2);
  run_ranks_as_threads(2, [&](World& world) {
    const fs::path machine = tiny.folder() / cat("machine-", world.rank());
    fs::create_directories(machine);
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(machine.c_str()), 0);
    told[static_cast<size_t>(world.rank())] = message_of<ConfigError>([&] { train(world, options, {}); });
  });
  EXPECT_THAT(told[0], HasSubstr("rank 1 failed while looking for run/run.lock"));
  EXPECT_THAT(told[1], AllOf(HasSubstr("--output_dir run: rank 1 on " + host_name()),
                             HasSubstr("a folder that every machine sees")));
}

}  // namespace
}  // namespace trireme::shared_output_dir_test
