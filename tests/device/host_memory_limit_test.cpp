#include "trireme/device/host_memory_limit.h"

#include <cstring>
#include <filesystem>
#include <iostream>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"

#include "tests/support/byte_units.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
namespace fs = std::filesystem;
using testing::kMiB;

// A machine made of files.
class Machine : public ::testing::Test {
 protected:
  Machine() {
    write("proc/meminfo",
          "MemTotal:       1048576 kB\nMemFree:         1000 kB\nMemAvailable:    716800 kB\n");
  }
  void write(const fs::path& file, const std::string& text) const { root_.write(file, text); }
  int64_t limit_bytes() const { return host_memory_limit_bytes_under(root_.path()); }
  int64_t left_bytes() const { return host_memory_left_bytes_under(root_.path()); }
  const TemporaryFolder root_;
};

TEST_F(Machine, without_control_groups_is_its_memory) {
  EXPECT_EQ(limit_bytes(), 1024 * kMiB);
}

TEST_F(Machine, a_v2_group_is_held_to_its_own_limit_and_those_above_it) {
  write("proc/self/cgroup", "0::/job/rank\n");
  write("sys/fs/cgroup/job/rank/memory.max", "max\n");
  EXPECT_EQ(limit_bytes(), 1024 * kMiB);
  write("sys/fs/cgroup/job/memory.max", "536870912\n");
  EXPECT_EQ(limit_bytes(), 512 * kMiB);
  write("sys/fs/cgroup/job/rank/memory.max", "268435456\n");
  EXPECT_EQ(limit_bytes(), 256 * kMiB);
}

TEST_F(Machine, a_container_that_sees_its_group_as_the_top_is_held_to_it) {
  write("proc/self/cgroup", "0::/some/path/of/the/host\n");
  write("sys/fs/cgroup/memory.max", "134217728\n");
  EXPECT_EQ(limit_bytes(), 128 * kMiB);
}

TEST_F(Machine, a_v1_memory_group_counts_and_other_v1_groups_do_not) {
  write("proc/self/cgroup", "7:cpu,cpuacct:/a\n5:memory:/b\n0::/\n");
  write("sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n");
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "67108864\n");
  EXPECT_EQ(limit_bytes(), 64 * kMiB);
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit_bytes(), 1024 * kMiB);
}

TEST_F(Machine, has_left_what_it_says_is_available) {
  EXPECT_EQ(left_bytes(), 700 * kMiB);
  write("proc/meminfo", "MemTotal:       1048576 kB\n");
  EXPECT_EQ(left_bytes(), 1024 * kMiB);
}

// Of 300 MiB used, 100 and 50 are file pages; 512 MiB is the limit.
TEST_F(Machine, a_v2_group_has_left_its_limit_less_what_is_used_but_not_file_pages) {
  write("proc/self/cgroup", "0::/job/rank\n");
  write("sys/fs/cgroup/job/memory.max", "536870912\n");
  write("sys/fs/cgroup/job/memory.current", "314572800\n");
  write("sys/fs/cgroup/job/memory.stat",
        "anon 157286400\nfile 157286400\ninactive_anon 1\nactive_anon 2\ninactive_file 104857600\n"
        "active_file 52428800\nunevictable 0\n");
  EXPECT_EQ(left_bytes(), (512 - 150) * kMiB);
  // A group within it that has less left counts, and one whose limit is passed has nothing left.
  write("sys/fs/cgroup/job/rank/memory.max", "209715200\n");
  write("sys/fs/cgroup/job/rank/memory.current", "104857600\n");
  EXPECT_EQ(left_bytes(), 100 * kMiB);
  write("sys/fs/cgroup/job/rank/memory.current", "314572800\n");
  EXPECT_EQ(left_bytes(), 0);
}

TEST_F(Machine, a_v1_group_counts_its_own_and_its_childrens_file_pages) {
  write("proc/self/cgroup", "5:memory:/b\n");
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "536870912\n");
  write("sys/fs/cgroup/memory/b/memory.usage_in_bytes", "314572800\n");
  write("sys/fs/cgroup/memory/b/memory.stat",
        "inactive_file 5\nactive_file 7\ntotal_inactive_file 104857600\ntotal_active_file 52428800\n");
  EXPECT_EQ(left_bytes(), (512 - 150) * kMiB);
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(left_bytes(), 700 * kMiB);
}

// The address sanitizer's shadow memory counts as data of the process, far beyond any limit that a test could
// set.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

rlimit soft_limit(int64_t bytes) {
  return {static_cast<rlim_t>(bytes), RLIM_INFINITY};
}

TEST(HostMemoryLimitDeathTest, is_of_this_machine_and_follows_resource_limits) {
  if (kAddressSanitizer) GTEST_SKIP() << "the address sanitizer's own memory counts against the limit";
  const int64_t machine = host_memory_limit_bytes();
  EXPECT_GT(machine, 64 * kMiB);
  EXPECT_LE(machine, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  EXPECT_EXIT(
      {
        const rlimit limit = soft_limit(machine / 2);
        setrlimit(RLIMIT_DATA, &limit);
        std::_Exit(host_memory_limit_bytes() == machine / 2 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(HostMemoryLimitDeathTest, what_is_left_follows_what_this_process_holds_of_a_resource_limit) {
  EXPECT_GT(host_memory_left_bytes(), 64 * kMiB);
  EXPECT_LT(host_memory_left_bytes(), host_memory_limit_bytes());
  EXPECT_EXIT(
      {
        std::ifstream statm("/proc/self/statm");
        int64_t mapped = 0;
        statm >> mapped;
        const rlimit limit = soft_limit(mapped * sysconf(_SC_PAGESIZE) + 64 * kMiB);
        setrlimit(RLIMIT_AS, &limit);
        const int64_t left = host_memory_left_bytes();
        std::_Exit(left <= 64 * kMiB && left > 56 * kMiB ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// What a rank meets that its machine has no memory for.
void run_out_of_memory(decltype(RLIMIT_AS) resource) {
  install_cpu_caching_allocator();
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  const rlimit limit = soft_limit(pages * sysconf(_SC_PAGESIZE) + 512 * kMiB);
  setrlimit(resource, &limit);
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope rank(account, MemoryCategory::activations);
  std::vector<at::Tensor> kept;
  try {
    while (kept.size() < 10000) kept.push_back(at::empty({16 * kMiB}, at::kByte));
  } catch (const ConfigError& error) {
    const int64_t most = account->state().peak_total_bytes;
    kept.clear();
    // What was freed serves again. (No parallel loop: the child has none of the threads.)
    std::memset(at::empty({16 * kMiB}, at::kByte).data_ptr(), 1, 16 * kMiB);
    std::cerr << error.what() << (most >= 128 * kMiB ? " late enough" : " too early") << std::endl;
    std::_Exit(0);
  }
  std::_Exit(1);
}

TEST(HostMemoryDeathTest, an_address_space_that_is_used_up_names_the_category_and_what_would_help) {
  EXPECT_EXIT(
      run_out_of_memory(RLIMIT_AS), ::testing::ExitedWithCode(0),
      "asked for 16.0 MiB .*more for activations.*holds activations .* MiB.*--recompute full.*late enough");
}

TEST(HostMemoryDeathTest, a_data_segment_that_is_used_up_is_the_same_error) {
  if (kAddressSanitizer) GTEST_SKIP() << "the address sanitizer's own memory counts against the limit";
  EXPECT_EXIT(run_out_of_memory(RLIMIT_DATA), ::testing::ExitedWithCode(0),
              "asked for 16.0 MiB .*more for activations.*--offload_activations disk.*late enough");
}

TEST(HostMemory, a_limit_of_the_allocators_own_refuses_before_the_kernel_kills) {
  install_cpu_caching_allocator();
  limit_host_memory(host_memory_counts().in_use_bytes + 64 * kMiB);
  {
    const at::Tensor fits = at::empty({40 * kMiB}, at::kByte);
    EXPECT_THAT(testing::message_of<ConfigError>([] { at::empty({40 * kMiB}, at::kByte); }),
                AllOf(HasSubstr("out of host memory: asked for 40.0 MiB"),
                      HasSubstr("Tensors of this process may hold "), HasSubstr("--host_memory_limit")));
  }
  // Cached blocks do not count against it.
  EXPECT_NO_THROW(at::empty({60 * kMiB}, at::kByte));
  limit_host_memory(0);
  EXPECT_NO_THROW(at::empty({80 * kMiB}, at::kByte));
}

TEST(HostMemory, a_size_beyond_all_memory_is_an_error_and_no_overflow) {
  install_cpu_caching_allocator();
  EXPECT_THROW(at::empty({std::numeric_limits<int64_t>::max() - 100}, at::kByte), ConfigError);
}

}  // namespace
}  // namespace trireme
