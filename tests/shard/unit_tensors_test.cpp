// Tensors on disk are those in memory: whatever is opened, changed, closed and read ahead, in any order.
#include "trireme/shard/unit_tensors.h"

#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

TEST(UnitTensors, on_disk_follow_those_in_memory_through_random_use) {
  const testing::TemporaryFolder folder;
  SpillFile spill(folder.path(), 0);
  const std::vector<int64_t> elements{1000, 16, 0, 70000, 32, 5008};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto memory = make_unit_tensors(elements, dtype, at::kCPU, Offload::none, nullptr);
    const auto disk = make_unit_tensors(elements, dtype, at::kCPU, Offload::disk, &spill);
    std::mt19937 random(3);
    for (int use = 0; use < 400; ++use) {
      const int unit = static_cast<int>(random() % elements.size());
      if (random() % 3 == 0) disk->prefetch(static_cast<int>(random() % elements.size()));
      at::Tensor a = memory->open(unit), b = disk->open(unit);
      ASSERT_TRUE(at::equal(a, b)) << "use " << use << ", unit " << unit;
      const bool change = random() % 2 == 0;
      if (change) {
        a.add_(static_cast<double>(random() % 100));
        b.copy_(a);
      }
      memory->close(unit, change);
      disk->close(unit, change);
    }
  }
  EXPECT_EQ(spill.reserved_bytes(), 0) << "space is given back";
}

TEST(UnitTensors, on_disk_serve_threads_that_use_different_units) {
  const testing::TemporaryFolder folder;
  SpillFile spill(folder.path(), 0);
  const std::vector<int64_t> elements{70000, 16, 1000, 5008, 90000, 32};
  const auto memory = make_unit_tensors(elements, at::kFloat, at::kCPU, Offload::none, nullptr);
  const auto disk = make_unit_tensors(elements, at::kFloat, at::kCPU, Offload::disk, &spill);
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int thread = 0; thread < 2; ++thread)
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      const auto any = [&] { return 2 * static_cast<int>(random() % 3) + thread; };
      for (int use = 0; use < 600; ++use) {
        const int unit = any();
        if (random() % 2 == 0) disk->prefetch(any());
        at::Tensor a = memory->open(unit), b = disk->open(unit);
        ASSERT_TRUE(at::equal(a, b)) << "use " << use << ", unit " << unit;
        const bool change = random() % 3 != 0;
        if (change) {
          a.add_(static_cast<double>(random() % 100));
          b.copy_(a);
        }
        disk->close(unit, change);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(UnitTensors, that_do_not_fit_into_the_limit_are_refused_at_once) {
  const testing::TemporaryFolder folder;
  SpillFile spill(folder.path(), 1 << 16);
  EXPECT_THROW(make_unit_tensors({1 << 20}, at::kFloat, at::kCPU, Offload::disk, &spill), ConfigError);
}

}  // namespace
}  // namespace trireme
