#include "trireme/device/cpu_caching_allocator.h"

#include <thread>

#include <gtest/gtest.h>

#include "tests/support/byte_units.h"

namespace trireme {
namespace {

using testing::kMiB;

class CpuCachingAllocator : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

TEST_F(CpuCachingAllocator, hands_out_64_byte_aligned_memory_of_any_size) {
  for (const int64_t bytes :
       std::vector<int64_t>{1, 63, 4096, 65536 - 1, 65536 + 1, 3 * kMiB, 9 * kMiB + 17}) {
    const at::Tensor tensor = at::full({bytes}, 7, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0) << bytes;
    EXPECT_EQ(tensor.sum().item<int64_t>(), 7 * bytes);
  }
}

TEST_F(CpuCachingAllocator, hands_out_large_memory_at_a_page_as_direct_transfers_to_a_disk_need_it) {
  for (const int64_t bytes : std::vector<int64_t>{65536, 65536 + 1, 3 * kMiB, 9 * kMiB + 17})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at::empty({bytes}, at::kByte).data_ptr()) % 4096, 0) << bytes;
}

TEST_F(CpuCachingAllocator, gives_a_freed_block_again_and_counts_what_lives) {
  const int64_t before = host_memory_counts().in_use_bytes;
  void* first = nullptr;
  {
    const at::Tensor tensor = at::empty({16 * kMiB}, at::kByte);
    first = tensor.data_ptr();
    EXPECT_GE(host_memory_counts().in_use_bytes, before + 16 * kMiB);
    EXPECT_LE(host_memory_counts().in_use_bytes, before + 17 * kMiB);
  }
  EXPECT_EQ(host_memory_counts().in_use_bytes, before);
  EXPECT_EQ(at::empty({16 * kMiB}, at::kByte).data_ptr(), first);
}

TEST_F(CpuCachingAllocator, gives_the_system_what_it_caches_when_asked) {
  const at::Tensor kept = at::full({kMiB}, 7, at::kByte);
  at::empty({16 * kMiB}, at::kByte);
  EXPECT_GT(host_memory_counts().reserved_bytes, host_memory_counts().in_use_bytes);
  release_cached_host_memory();
  EXPECT_EQ(host_memory_counts().reserved_bytes, host_memory_counts().in_use_bytes);
  EXPECT_EQ(kept.sum().item<int64_t>(), 7 * kMiB);
}

TEST_F(CpuCachingAllocator, holds_no_more_than_a_tenth_above_the_most_that_was_in_use) {
  // Sizes that never fit each other's blocks.
  for (int64_t size = 8; size < 200; size = size * 3 / 2) at::empty({size * kMiB}, at::kByte).fill_(1);
  const HostMemoryCounts counts = host_memory_counts();
  EXPECT_LE(counts.reserved_bytes, counts.peak_in_use_bytes + counts.peak_in_use_bytes / 10 + kMiB);
}

TEST_F(CpuCachingAllocator, serves_threads_that_free_each_others_blocks) {
  std::vector<at::Tensor> tensors(64);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int worker = 0; worker < 4; ++worker)
    threads.emplace_back([&, worker] {
      for (int round = 0; round < 50; ++round)
        for (int slot = worker * 16; slot < worker * 16 + 16; ++slot)
          tensors[slot] = at::full({100000 + 1000 * round}, worker, at::kByte);
    });
  for (auto& thread : threads) thread.join();
  for (int slot = 0; slot < 64; ++slot) EXPECT_EQ(tensors[slot].max().item<int>(), slot / 16);
}

}  // namespace
}  // namespace trireme
