// What the system's own list of mounts says is the oracle.
#include "trireme/memory/memory_file_system.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of the last mount at the folder, which is the one that is seen there; empty where nothing is mounted.
std::string mounted_type(const fs::path& folder) {
  std::ifstream in("/proc/self/mounts");
  std::string seen;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string device, at, type;
    words >> device >> at >> type;
    if (at == folder) seen = type;
  }
  return seen;
}

TEST(MemoryFileSystem, is_known_by_what_is_mounted_at_the_folder) {
  int in_memory = 0, elsewhere = 0;
  for (const char* folder : {"/", "/proc", "/sys", "/run", "/dev/shm"}) {
    const std::string type = mounted_type(folder);
    if (type.empty()) continue;
    const bool memory = type == "tmpfs" || type == "ramfs";
    (memory ? in_memory : elsewhere) += 1;
    EXPECT_EQ(memory_file_system(folder), memory ? std::optional(type) : std::nullopt)
        << folder << ", " << type;
  }
  EXPECT_GT(elsewhere, 0);
  if (in_memory == 0) GTEST_SKIP() << "nothing is mounted in memory here";
}

TEST(MemoryFileSystem, a_folder_that_is_not_there_is_on_none) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(memory_file_system(folder / "nowhere"), std::nullopt);
}

TEST(MemoryFileSystem, is_warned_of_where_something_goes_to_disk_in_it) {
  OffloadOptions options;
  options.folder = "/dev/shm";
  if (mounted_type(options.folder) != "tmpfs") GTEST_SKIP() << "no tmpfs at /dev/shm";
  EXPECT_EQ(memory_for_disk_warning(options), std::nullopt);
  options.optimizer = Offload::cpu;
  EXPECT_EQ(memory_for_disk_warning(options), std::nullopt);
  options.activations = Offload::disk;
  const auto warning = memory_for_disk_warning(options);
  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning, AllOf(HasSubstr("--offload_dir /dev/shm"), HasSubstr("tmpfs"), HasSubstr("memory")));
  options.folder = "/proc";
  EXPECT_EQ(memory_for_disk_warning(options), std::nullopt);
}

}  // namespace
}  // namespace trireme
