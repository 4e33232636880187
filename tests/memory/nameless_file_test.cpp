#include "trireme/memory/nameless_file.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/memory/spill_file.h"

#include "tests/memory/open_file.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using trireme::testing::open_file_in;
using trireme::testing::status_of;
using trireme::testing::TemporaryFolder;

TEST(NamelessFile, has_no_name_whichever_way_it_is_made) {
  for (const auto creation : {NamelessCreation::automatic, NamelessCreation::unlinked}) {
    const TemporaryFolder folder;
    const FileDescriptor file = open_nameless_file(folder.path(), creation);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(status_of(open_file_in(folder.path())).st_nlink, 0U);
    ASSERT_EQ(::pwrite(file.get(), "ab", 2, 5), 2);
    char read[2] = {};
    ASSERT_EQ(::pread(file.get(), read, 2, 5), 2);
    EXPECT_EQ(read[1], 'b');
  }
}

// In the child: takes blocks, writes, tells so, and waits for its end.
[[noreturn]] void hold_until_killed(const std::filesystem::path& folder, int64_t bytes, int tell) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    SpillFile file(folder, 0);
    const std::vector<char> data(1 << 20, 'x');
    file.write({file.reserve(bytes).offset, 1 << 20}, data.data()).wait();
    while (::write(tell, "1", 1) == 1) ::pause();
  } catch (const std::exception&) {
    // The other side sees that nothing was told.
  }
  std::_Exit(1);
}

TEST(NamelessFile, of_a_killed_process_leaves_no_name_and_gives_its_blocks_back) {
  const TemporaryFolder folder;
  const int64_t bytes = int64_t{256} << 20;
  const auto free = [&] { return static_cast<int64_t>(std::filesystem::space(folder.path()).free); };
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) hold_until_killed(folder.path(), bytes, ends[1]);
  ::close(ends[1]);
  char told = 0;
  ASSERT_EQ(::read(ends[0], &told, 1), 1);
  ::close(ends[0]);

  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const auto open = open_file_in(folder.path(), child);
  EXPECT_EQ(status_of(open).st_nlink, 0U);
  EXPECT_GE(trireme::testing::bytes_on_disk(open), bytes);
  const int64_t free_before = free();
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));

  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  // Some file systems free blocks a moment later; others write to this disk meanwhile.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (free() < free_before + bytes / 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(free(), free_before + bytes / 2);
}

}  // namespace
}  // namespace trireme
