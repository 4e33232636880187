// The pool's laws, with a driver that the test plays: what is pinned, and when copies are done.
#include "trireme/device/pinned_pool.h"

#include <atomic>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"

#include "tests/support/byte_units.h"
#include "tests/support/error_message.h"
#include "tests/support/pinned_ranges.h"

namespace trireme {
namespace {

using enum MemoryCategory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kMiB;
using testing::message_of;
using testing::pinning_of;

constexpr int64_t kPage = 4096;

// A copy that is done when somebody waits for it, or when the test says so.
class Copy final : public StreamMark {
 public:
  bool reached() const override { return done_; }
  void wait() const override {
    if (!done_) ++waits_;
    if (while_waiting) while_waiting();
    done_ = true;
  }
  void finish() { done_ = true; }
  int waits() const { return waits_; }
  std::function<void()> while_waiting;

 private:
  mutable std::atomic<bool> done_ = false;
  mutable std::atomic<int> waits_ = 0;
};

class PinnedPoolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
  at::Tensor pages(int64_t count) { return pool_.take(count * kPage); }

  std::shared_ptr<testing::PinnedRanges> ranges_ = std::make_shared<testing::PinnedRanges>();
  PinnedPool pool_{pinning_of(ranges_)};
};

TEST_F(PinnedPoolTest, gives_pinned_memory_of_any_type_and_no_more_than_whole_pages) {
  int64_t whole = 0;
  std::vector<at::Tensor> kept;
  for (const at::ScalarType dtype : {at::kByte, at::kBFloat16, at::kFloat, at::kLong})
    for (const int64_t elements : {1, 511, 4096, 100'000}) {
      kept.push_back(pool_.take(elements, dtype));
      at::Tensor& tensor = kept.back();
      EXPECT_EQ(tensor.sizes(), at::IntArrayRef{elements});
      EXPECT_EQ(tensor.scalar_type(), dtype);
      tensor.fill_(7);
      EXPECT_TRUE(ranges_->holds(tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes())));
      whole += (static_cast<int64_t>(tensor.nbytes()) + kPage - 1) / kPage * kPage;
    }
  EXPECT_EQ(ranges_->bytes(), whole);
  EXPECT_EQ(pool_.pinned_bytes(), whole);
  for (const at::Tensor& tensor : kept) EXPECT_TRUE(tensor.eq(7).all().item<bool>());
  EXPECT_EQ(pool_.take(0, at::kFloat).numel(), 0);
  EXPECT_EQ(pool_.pinned_bytes(), whole);
}

TEST_F(PinnedPoolTest, gives_a_dropped_block_to_the_next_request_of_its_size_alone) {
  void* first = pages(5).data_ptr();
  EXPECT_EQ(pages(5).data_ptr(), first);
  EXPECT_EQ(pool_.take(5 * kPage / 4 - 10, at::kFloat).data_ptr(), first) << "the same pages";
  EXPECT_EQ(ranges_->pins(), 1);
  const at::Tensor smaller = pages(4);
  EXPECT_EQ(ranges_->pins(), 2);
}

TEST_F(PinnedPoolTest, in_a_second_step_of_the_same_layers_pins_nothing) {
  const auto step = [&] {
    std::vector<at::Tensor> layers;
    for (int layer = 0; layer < 5; ++layer) {
      layers.push_back(pages(16));
      layers.push_back(pages(3));
    }
    for (at::Tensor& span : layers) PinnedPool::in_use_until(span, std::make_shared<Copy>());
  };
  step();
  const int pins = ranges_->pins();
  for (int again = 0; again < 3; ++again) step();
  EXPECT_EQ(ranges_->pins(), pins);
  EXPECT_EQ(pool_.pinned_bytes(), 5 * 19 * kPage);
}

TEST_F(PinnedPoolTest, never_keeps_more_pinned_than_was_in_use_at_once) {
  std::mt19937 random(1);
  std::vector<at::Tensor> live;
  int64_t in_use = 0, most = 0;
  for (int round = 0; round < 2000; ++round) {
    if (live.size() > 6 || (!live.empty() && random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      in_use -= live.back().numel();
      live.pop_back();
    } else {
      live.push_back(pages(1 + static_cast<int64_t>(random() % 9)));
      in_use += live.back().numel();
      most = std::max(most, in_use);
    }
    ASSERT_LE(pool_.pinned_bytes(), most);
    ASSERT_EQ(pool_.pinned_bytes(), ranges_->bytes());
  }
}

TEST_F(PinnedPoolTest, gives_up_first_what_has_lain_unused_longest) {
  at::Tensor one = pages(1), two = pages(2), four = pages(4);
  two = at::Tensor();
  one = at::Tensor();
  four = at::Tensor();
  const at::Tensor three = pages(3);  // for which the first two make way
  EXPECT_EQ(pool_.pinned_bytes(), 7 * kPage);
  EXPECT_EQ(ranges_->pins(), 4);
  four = pages(4);
  EXPECT_EQ(ranges_->pins(), 4);
}

TEST_F(PinnedPoolTest, waits_for_a_copy_before_its_block_serves_again_and_rather_gives_another) {
  const auto slow = std::make_shared<Copy>(), done = std::make_shared<Copy>();
  at::Tensor first = pages(2), second = pages(2);
  void* const first_data = first.data_ptr();
  void* const second_data = second.data_ptr();
  PinnedPool::in_use_until(first.narrow(0, 100, 50), slow);  // a view stands for its block
  PinnedPool::in_use_until(second, done);
  done->finish();
  first = at::Tensor();  // unused longer than the other
  second = at::Tensor();
  second = pages(2);
  EXPECT_EQ(second.data_ptr(), second_data);
  EXPECT_EQ(slow->waits(), 0);
  first = pages(2);
  EXPECT_EQ(first.data_ptr(), first_data);
  EXPECT_EQ(slow->waits(), 1);
}

TEST_F(PinnedPoolTest, waits_for_every_copy_of_a_block) {
  const auto out = std::make_shared<Copy>(), back = std::make_shared<Copy>();
  at::Tensor span = pages(1);
  PinnedPool::in_use_until(span, out);
  PinnedPool::in_use_until(span, back);
  PinnedPool::in_use_until(span, nullptr);  // as a CPU's stream says
  back->finish();
  span = at::Tensor();
  span = pages(1);
  EXPECT_EQ(out->waits(), 1);
}

TEST_F(PinnedPoolTest, unpins_nothing_that_a_copy_still_uses) {
  const auto copy = std::make_shared<Copy>(), last = std::make_shared<Copy>();
  {
    PinnedPool pool(pinning_of(ranges_));
    at::Tensor span = pool.take(kPage), larger = pool.take(2 * kPage);
    copy->while_waiting = [&, data = span.data_ptr()] { EXPECT_TRUE(ranges_->holds(data, kPage)); };
    last->while_waiting = [&, data = larger.data_ptr()] { EXPECT_TRUE(ranges_->holds(data, 2 * kPage)); };
    PinnedPool::in_use_until(span, copy);
    PinnedPool::in_use_until(larger, last);
    span = at::Tensor();
    const at::Tensor other = pool.take(1, at::kByte);  // the same size: waits
    EXPECT_EQ(copy->waits(), 1);
    larger = at::Tensor();
    EXPECT_EQ(last->waits(), 0);
  }
  EXPECT_EQ(last->waits(), 1);
  EXPECT_EQ(ranges_->bytes(), 0);
}

TEST_F(PinnedPoolTest, is_outlived_by_its_tensors) {
  at::Tensor span;
  {
    PinnedPool pool(pinning_of(ranges_));
    span = pool.take(10, at::kLong);
  }
  span.fill_(3);
  EXPECT_TRUE(ranges_->holds(span.data_ptr(), 80));
  std::thread([&] { span = at::Tensor(); }).join();
  EXPECT_EQ(ranges_->bytes(), 0);
}

TEST_F(PinnedPoolTest, gives_up_what_it_keeps_before_it_says_that_pinning_failed) {
  at::Tensor one = pages(1), another = pages(1), large = pages(8);
  large = at::Tensor();
  one = at::Tensor();
  ranges_->refuse_beyond(3 * kPage);
  const at::Tensor two = pages(2);  // beside `another`, when `one` is given up
  EXPECT_EQ(pool_.pinned_bytes(), 3 * kPage);
  EXPECT_THROW(pages(1), ConfigError);
  EXPECT_EQ(pool_.pinned_bytes(), 3 * kPage);
  EXPECT_EQ(ranges_->bytes(), 3 * kPage);
}

TEST_F(PinnedPoolTest, keeps_no_more_for_a_request_that_failed) {
  at::Tensor two = pages(2);
  ranges_->refuse_beyond(2 * kPage);
  EXPECT_THROW(pages(5), ConfigError);
  ranges_->refuse_beyond(kMiB);
  two = at::Tensor();
  const at::Tensor three = pages(3);
  EXPECT_EQ(pool_.pinned_bytes(), 3 * kPage);
}

TEST_F(PinnedPoolTest, that_cannot_pin_names_the_category_the_bytes_the_reason_and_what_would_help) {
  const auto account = std::make_shared<MemoryAccount>(MemorySpace::host);
  account->add(tiles, 5 * kMiB);  // the device's
  const MemoryScope rank(account, activations);
  const at::Tensor held = pool_.take(6 * kMiB);
  ranges_->refuse_beyond(8 * kMiB);
  EXPECT_THAT(
      message_of<ConfigError>([&] { pool_.take(3 * kMiB); }),
      AllOf(HasSubstr("out of pinned host memory: asked for 3.0 MiB (3145728 bytes) more for activations"),
            HasSubstr("this rank holds activations 6.0 MiB. "),
            HasSubstr("--offload_activations disk (saves about 8.1 MiB of activations)"),
            HasSubstr("the test has pinned enough")));
}

TEST_F(PinnedPoolTest, takes_no_more_than_the_limit_of_the_host) {
  limit_host_memory(host_memory_counts().in_use_bytes + 4 * kMiB);
  {
    const at::Tensor fits = pool_.take(3 * kMiB);
    EXPECT_THAT(message_of<ConfigError>([&] { pool_.take(2 * kMiB); }),
                HasSubstr("out of host memory: asked for 2.0 MiB"));
  }
  EXPECT_EQ(pool_.pinned_bytes(), 3 * kMiB);
  EXPECT_NO_THROW(pool_.take(2 * kMiB)) << "what is kept makes way";
  EXPECT_EQ(pool_.pinned_bytes(), 2 * kMiB);
  limit_host_memory(0);
}

TEST_F(PinnedPoolTest, is_counted_as_the_hosts_in_the_category_that_took_it_last_as_long_as_it_is_pinned) {
  const auto account = std::make_shared<MemoryAccount>(MemorySpace::host);
  {
    PinnedPool pool(pinning_of(ranges_));
    {
      const MemoryScope rank(account, activations);
      const at::Tensor span = pool.take(kMiB);
      EXPECT_EQ(account->state().host.now[activations], kMiB + kPage);
    }
    EXPECT_EQ(account->state().host.now[activations], kMiB + kPage);
    const MemoryScope rank(account, parameters);
    const at::Tensor share = pool.take(kMiB);
    EXPECT_EQ(account->state().host.now[activations], 0);
    EXPECT_EQ(account->state().host.now[parameters], kMiB + kPage);
    EXPECT_EQ(account->state().now, MemoryBytes{}) << "the device's";
  }
  EXPECT_EQ(account->state().host.now, MemoryBytes{});
}

TEST_F(PinnedPoolTest, serves_threads_that_drop_each_others_blocks) {
  std::vector<at::Tensor> tensors(40);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int worker = 0; worker < 4; ++worker)
    threads.emplace_back([&, worker] {
      for (int round = 0; round < 50; ++round)
        for (int slot = worker * 10; slot < worker * 10 + 10; ++slot) {
          at::Tensor fresh = pool_.take((1 + (round + slot) % 3) * kPage);
          std::memset(fresh.data_ptr(), worker + 1, fresh.nbytes());
          tensors[static_cast<size_t>(slot)] = fresh;
        }
    });
  for (auto& thread : threads) thread.join();
  for (int slot = 0; slot < 40; ++slot) {
    const at::Tensor& tensor = tensors[static_cast<size_t>(slot)];
    EXPECT_TRUE(tensor.eq(slot / 10 + 1).all().item<bool>()) << slot;
  }
  tensors.clear();
  EXPECT_EQ(pool_.pinned_bytes(), ranges_->bytes());
}

TEST(PinnedPool, knows_what_is_not_its_own) {
  EXPECT_THROW(PinnedPool::in_use_until(at::zeros({3}), std::make_shared<Copy>()), InternalError);
  EXPECT_NO_THROW(PinnedPool::in_use_until(at::empty({0}), std::make_shared<Copy>()));
}

}  // namespace
}  // namespace trireme
