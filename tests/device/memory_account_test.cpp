#include "trireme/device/memory_account.h"

#include <thread>

#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/device_memory_observer.h"
#include "trireme/device/tensor_memory.h"

#include "tests/support/byte_units.h"

namespace trireme {
namespace {

using enum MemoryCategory;
using testing::kMiB;

at::Tensor bytes_of(int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

class MemoryAccountOnHost : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  int64_t now(MemoryCategory category) const { return account_->state().now[category]; }
};

TEST(MemoryAccount, the_peak_of_the_total_keeps_what_each_category_held_then) {
  MemoryAccount account;
  account.add(parameters, 100);
  account.add(tiles, 60);
  account.add(tiles, -60);
  account.add(attention, 50);
  account.add(attention, -50);
  const MemoryState state = account.state();
  EXPECT_EQ(state.peak_total_bytes, 160);
  EXPECT_EQ(state.at_peak[tiles], 60);
  EXPECT_EQ(state.at_peak[attention], 0);
  EXPECT_EQ(state.peak[attention], 50);
  EXPECT_EQ(state.now.total(), 100);
  account.reset_peaks();
  EXPECT_EQ(account.state().peak, account.state().now);
  EXPECT_EQ(account.state().peak_total_bytes, 100);
}

TEST_F(MemoryAccountOnHost, scopes_nest_and_give_the_owner_before_back) {
  EXPECT_EQ(MemoryScope::current().account, nullptr);
  at::Tensor outer, inner, after;
  {
    const MemoryScope rank(account_, other);
    outer = bytes_of(2 * kMiB);
    {
      const MemoryScope tile(tiles);
      inner = bytes_of(3 * kMiB);
    }
    after = bytes_of(kMiB);
  }
  const at::Tensor uncounted = bytes_of(5 * kMiB);
  EXPECT_EQ(MemoryScope::current().account, nullptr);
  EXPECT_EQ(now(other), 3 * kMiB);
  EXPECT_EQ(now(tiles), 3 * kMiB);
  EXPECT_EQ(account_->state().now.total(), 6 * kMiB);
}

TEST_F(MemoryAccountOnHost, small_and_large_blocks_are_counted_by_the_bytes_asked_for) {
  const MemoryScope rank(account_, tiles);
  for (const int64_t bytes : std::vector<int64_t>{1, 100, 65535, 65536, 3 * kMiB + 1}) {
    const at::Tensor tensor = bytes_of(bytes);
    EXPECT_EQ(now(tiles), bytes);
  }
  EXPECT_EQ(now(tiles), 0);
  EXPECT_EQ(account_->state().peak[tiles], 3 * kMiB + 1);
}

TEST_F(MemoryAccountOnHost, a_block_goes_back_to_where_it_came_from_by_whichever_thread_and_scope) {
  at::Tensor tensor;
  {
    const MemoryScope rank(account_, gradients);
    tensor = bytes_of(2 * kMiB);
  }
  const auto another = std::make_shared<MemoryAccount>();
  std::thread([&] {
    const MemoryScope rank(another, tiles);
    tensor = at::Tensor();
  }).join();
  EXPECT_EQ(now(gradients), 0);
  EXPECT_EQ(account_->state().peak[gradients], 2 * kMiB);
  EXPECT_EQ(another->state().now, MemoryBytes{});
}

TEST_F(MemoryAccountOnHost, a_cached_block_that_is_given_again_is_counted_by_the_new_owner) {
  {
    const MemoryScope rank(account_, gradients);
    bytes_of(7 * kMiB);
  }
  { const at::Tensor uncounted = bytes_of(7 * kMiB); }
  EXPECT_EQ(account_->state().now, MemoryBytes{});
  const MemoryScope rank(account_, tiles);
  const at::Tensor again = bytes_of(7 * kMiB);
  EXPECT_EQ(now(tiles), 7 * kMiB);
}

TEST_F(MemoryAccountOnHost, an_account_lives_as_long_as_its_blocks) {
  at::Tensor large, small;
  const std::weak_ptr<MemoryAccount> watched = account_;
  {
    const MemoryScope rank(account_, other);
    large = bytes_of(2 * kMiB);
    small = bytes_of(64);
  }
  account_.reset();
  EXPECT_FALSE(watched.expired());
  large = at::Tensor();
  EXPECT_FALSE(watched.expired());
  small = at::Tensor();
  EXPECT_TRUE(watched.expired());
}

TEST_F(MemoryAccountOnHost, ranks_as_threads_count_each_their_own) {
  std::vector<std::shared_ptr<MemoryAccount>> accounts;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    accounts.push_back(std::make_shared<MemoryAccount>());
    threads.emplace_back([rank, account = accounts.back()] {
      const MemoryScope scope(account, activations);
      for (int round = 0; round < 200; ++round) bytes_of((rank + 1) * kMiB);
    });
  }
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(accounts[rank]->state().now, MemoryBytes{});
    EXPECT_EQ(accounts[rank]->state().peak[activations], (rank + 1) * kMiB);
    EXPECT_EQ(accounts[rank]->state().peak_total_bytes, (rank + 1) * kMiB);
  }
}

TEST_F(MemoryAccountOnHost, a_worker_allocates_by_the_owner_of_the_thread_it_works_for) {
  const MemoryScope rank(account_, attention);
  at::Tensor tensor;
  std::thread([&, owner = MemoryScope::current()] {
    const MemoryScope scope(owner);
    tensor = bytes_of(2 * kMiB);
  }).join();
  EXPECT_EQ(now(attention), 2 * kMiB);
}

TEST_F(MemoryAccountOnHost, a_tensor_that_changes_its_role_moves_to_another_category) {
  at::Tensor tensor;
  {
    const MemoryScope rank(account_, attention);
    tensor = bytes_of(4 * kMiB);
  }
  count_as(tensor.narrow(0, 100, 10), activations);  // a view stands for its storage
  EXPECT_EQ(now(attention), 0);
  EXPECT_EQ(now(activations), 4 * kMiB);
  EXPECT_EQ(account_->state().peak_total_bytes, 4 * kMiB);
  tensor = at::Tensor();
  EXPECT_EQ(now(activations), 0);

  count_as(at::Tensor(), tiles);
  count_as(bytes_of(kMiB), tiles);
  std::vector<float> foreign(16);
  count_as(at::from_blob(foreign.data(), {16}), tiles);
  EXPECT_EQ(account_->state().now, MemoryBytes{});
}

TEST_F(MemoryAccountOnHost, beside_a_gpu_the_hosts_bytes_stand_by_themselves) {
  const auto beside = std::make_shared<MemoryAccount>(MemorySpace::host);
  beside->add(optimizer, 7 * kMiB);
  at::Tensor tensor;
  {
    const MemoryScope rank(beside, optimizer);
    tensor = bytes_of(3 * kMiB);
  }
  EXPECT_EQ(beside->state().now.total(), 7 * kMiB);
  EXPECT_EQ(beside->state().host.now[optimizer], 3 * kMiB);
  EXPECT_EQ(beside->held(MemorySpace::host)[optimizer], 3 * kMiB);
  count_as(tensor, gradients);
  EXPECT_EQ(beside->state().host.now[gradients], 3 * kMiB);
  tensor = at::Tensor();
  EXPECT_EQ(beside->state().host.now, MemoryBytes{});
  EXPECT_EQ(beside->state().host.peak_total_bytes, 3 * kMiB);
  beside->reset_peaks();
  EXPECT_EQ(beside->state().host.peak_total_bytes, 0);
  EXPECT_EQ(beside->state().peak_total_bytes, 7 * kMiB);
}

TEST(MemoryAccount, of_a_cpu_has_one_memory_however_it_is_asked) {
  MemoryAccount account;
  account.add(tiles, 100, MemorySpace::host);
  account.add(tiles, 10, MemorySpace::device);
  EXPECT_EQ(account.held(MemorySpace::host)[tiles], 110);
  EXPECT_EQ(account.held(MemorySpace::device)[tiles], 110);
  EXPECT_EQ(account.state().host.peak_total_bytes, 0);
  EXPECT_EQ(account.options(MemorySpace::host).size(), account.options(MemorySpace::device).size());
}

// The part of the CUDA caching allocator is played by the functions that it calls.
TEST(DeviceMemoryObserver, counts_what_a_device_allocator_reports) {
  const auto account = std::make_shared<MemoryAccount>();
  const auto observer = std::make_shared<DeviceMemoryObserver>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, observer);
  const c10::Device gpu(c10::DeviceType::CUDA, 0);
  int first = 0, second = 0, on_the_host = 0;
  ASSERT_TRUE(c10::memoryProfilingEnabled());
  {
    const MemoryScope rank(account, tiles);
    c10::reportMemoryUsageToProfiler(&first, 512, 512, 512, gpu);
    c10::reportMemoryUsageToProfiler(&second, 1024, 1536, 2048, gpu);
    c10::reportMemoryUsageToProfiler(&on_the_host, 4096, 0, 0, c10::Device(c10::DeviceType::CPU));
  }
  EXPECT_EQ(account->state().now[tiles], 1536);
  observer->recount(&second, activations);
  EXPECT_EQ(account->state().now[activations], 1024);
  c10::reportMemoryUsageToProfiler(&second, -1024, 512, 2048, gpu);
  EXPECT_EQ(account->state().now[activations], 0);
  // `first` was freed where no one watched, and is given out again.
  const MemoryScope rank(account, parameters);
  c10::reportMemoryUsageToProfiler(&first, 2048, 2048, 2048, gpu);
  EXPECT_EQ(account->state().now[tiles], 0);
  EXPECT_EQ(account->state().now.total(), 2048);
}

}  // namespace
}  // namespace trireme
