// --log_dir: each rank's output whole, attempt by attempt, and beside it shown as ever.
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/launch_outcome.h"
#include "tests/launch/shell_ranks.h"

namespace trireme {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::launch_and_wait;
using testing::LaunchOutcome;
using testing::shell;
using testing::TemporaryFolder;

TEST(LogDir, keeps_each_ranks_output_whole_and_shows_it_as_ever) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(
      2, "printf \"$RANK\\r\\n\"; echo wrong >&2; exit $((RANK * 75 * (1 - TORCHELASTIC_RESTART_COUNT)))");
  options.log_dir = (folder / "logs").string();
  options.max_restarts = 1;
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* attempt : {"logs/attempt-0/", "logs/attempt-1/"}) {
    for (const char* rank : {"0", "1"}) {
      const std::string file = std::string(attempt) + "rank-" + rank;
      EXPECT_EQ(bytes_of(folder / (file + ".out")), std::string(rank) + "\r\n") << file;
      EXPECT_EQ(bytes_of(folder / (file + ".err")), "wrong\n") << file;
    }
  }
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] 1\n"));
  EXPECT_THAT(outcome.err, HasSubstr("] wrong\n"));
}

TEST(LogDir, of_an_earlier_launch_is_added_to) {
  const TemporaryFolder folder;
  LaunchOptions options = shell(1, "echo here");
  options.log_dir = folder.path().string();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(launch_and_wait(options).code, 0);
  EXPECT_EQ(bytes_of(folder / "attempt-0/rank-0.out"), "here\nhere\n");
}

TEST(LogDir, on_a_full_disk_warns_once_and_the_run_goes_on) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "attempt-0");
  std::filesystem::create_symlink("/dev/full", folder / "attempt-0/rank-0.out");
  LaunchOptions options = shell(1, "echo one; sleep 0.1; echo two");
  options.log_dir = folder.path().string();
  const LaunchOutcome outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "[rank 0] one\n[rank 0] two\n");
  const size_t first = outcome.err.find("warning: cannot write ");
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("No space left on device"));
  EXPECT_EQ(outcome.err.find("warning", first + 1), std::string::npos) << outcome.err;
}

TEST(LogDir, with_a_file_that_cannot_be_opened_says_why) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "attempt-0/rank-0.out");
  LaunchOptions options = shell(1, "echo one");
  options.log_dir = folder.path().string();
  EXPECT_THAT(launch_and_wait(options).err, HasSubstr("rank-0.out: Is a directory"));
}

}  // namespace
}  // namespace trireme
