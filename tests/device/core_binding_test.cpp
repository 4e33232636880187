// Ranks of a machine have cores of their own, unless somebody else has bound them.
#include "trireme/device/core_binding.h"

#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace trireme::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CoreBinding, hardware_threads_of_a_core_stay_together) {
  // Linux counts the first thread of each core before the second ones. Two packages of two cores.
  const std::vector<Processor> processors{{0, 0, 0}, {1, 0, 1}, {2, 1, 0}, {3, 1, 1},
                                          {4, 0, 0}, {5, 0, 1}, {6, 1, 0}, {7, 1, 1}};
  EXPECT_THAT(share_of_processors(processors, 0, 2), ElementsAre(0, 4, 1, 5));
  EXPECT_THAT(share_of_processors(processors, 1, 2), ElementsAre(2, 6, 3, 7));
  EXPECT_THAT(share_of_processors(processors, 2, 4), ElementsAre(2, 6));
}

TEST(CoreBinding, shares_cover_all_processors_once) {
  std::vector<Processor> processors;
  processors.reserve(11);
  for (int number = 0; number < 11; ++number) processors.push_back({number, 0, number});
  std::vector<int> all;
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<int> share = share_of_processors(processors, rank, 3);
    EXPECT_NEAR(static_cast<double>(share.size()), 11. / 3, 1);
    all.insert(all.end(), share.begin(), share.end());
  }
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

cpu_set_t bound_now() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

// The exit status of a child process, whose binding ends with it.
template <typename Body>
int status_of_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CoreBinding, a_rank_takes_its_share_and_no_more_threads) {
  cpu_set_t all = bound_now();
  const int cores = CPU_COUNT(&all);
  if (cores < 2) GTEST_SKIP() << "one core";
  EXPECT_EQ(status_of_child([&] {
              if (!bind_to_share_of_cores(1, 2, 1)) return 100;
              cpu_set_t now = bound_now();
              return CPU_COUNT(&now);
            }),
            cores - cores / 2);
  EXPECT_EQ(status_of_child([&] { return bind_to_share_of_cores(0, 2, cores) ? 1 : 0; }), 0);
  EXPECT_EQ(status_of_child([] { return bind_to_share_of_cores(0, 1, 1) ? 1 : 0; }), 0);
  EXPECT_EQ(status_of_child([&] { return bind_to_share_of_cores(0, cores + 1, 1) ? 1 : 0; }), 0);
}

cpu_set_t one_of(cpu_set_t processors) {
  for (int number = 0; number < CPU_SETSIZE && CPU_COUNT(&processors) > 1; ++number)
    CPU_CLR(number, &processors);
  return processors;
}

TEST(CoreBinding, a_rank_computes_on_all_that_a_launcher_bound_it_to_and_else_on_a_share) {
  const cpu_set_t all = bound_now();
  const int cores = CPU_COUNT(&all);
  if (cores < 2) GTEST_SKIP() << "one core";
  EXPECT_EQ(status_of_child([] { return cores_of_rank(2); }), cores / 2);
  EXPECT_EQ(status_of_child([&] { return cores_of_rank(2 * cores); }), 1);
  EXPECT_EQ(status_of_child([&] {  // a launcher on one processor, which gives its rank all
              const cpu_set_t one = one_of(all);
              sched_setaffinity(0, sizeof(one), &one);
              return status_of_child([&] {
                sched_setaffinity(0, sizeof(all), &all);
                return cores_of_rank(2);
              });
            }),
            cores);
}

TEST(CoreBinding, what_a_launcher_bound_stays) {
  cpu_set_t all = bound_now();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  EXPECT_EQ(status_of_child([&] {
              const cpu_set_t one = one_of(all);
              if (sched_setaffinity(0, sizeof(one), &one) != 0) return 100;
              if (bind_to_share_of_cores(0, 2, 1)) return 1;
              cpu_set_t now = bound_now();
              return CPU_EQUAL(&now, &one) ? 0 : 2;
            }),
            0);
}

TEST(CoreBinding, lists_of_the_kernel_are_read_whole_or_not_at_all) {
  EXPECT_THAT(processors_of_list("0-2,8"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(processors_of_list("5"), ElementsAre(5));
  for (const char* list : {"", "-", "a", "1-", "3-1", "0,,2", "0-99999999", "1;2", "0-1x"})
    EXPECT_THAT(processors_of_list(list), IsEmpty()) << list;
}

TEST(CoreBinding, a_rank_of_a_gpu_stays_on_its_side_of_the_machine) {
  const cpu_set_t all = bound_now();
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  const cpu_set_t one = one_of(all);
  int number = 0;
  while (!CPU_ISSET(number, &one)) ++number;
  const TemporaryFolder devices;
  const auto write = [&](const std::string& list) {
    std::filesystem::create_directories(devices / "0000:3b:00.0");
    std::ofstream(devices / "0000:3b:00.0" / "local_cpulist") << list << "\n";
  };
  const auto bound = [&](int threads = 1) {
    return status_of_child([&] {
      if (!bind_near("0000:3B:00.0", threads, devices.path())) return 0;
      const cpu_set_t now = bound_now();
      return CPU_EQUAL(&now, &one) ? 1 : 2;
    });
  };
  EXPECT_EQ(bound(), 0) << "the kernel does not tell";
  write(std::to_string(number));
  EXPECT_EQ(bound(), 1);
  EXPECT_EQ(bound(2), 0) << "more threads than are near";
  write("0-1023");
  EXPECT_EQ(bound(), 0) << "all are near";
  EXPECT_EQ(status_of_child([&] { return bind_near("", 1, devices.path()) ? 1 : 0; }), 0) << "no GPU";
  write(std::to_string(number));
  EXPECT_EQ(status_of_child([&] {
              if (sched_setaffinity(0, sizeof(one), &one) != 0) return 100;
              return bind_near("0000:3B:00.0", 1, devices.path()) ? 1 : 0;
            }),
            0)
      << "what a launcher bound stays";
}

}  // namespace
}  // namespace trireme::testing
