// What a collective costs on a device: operations that are given to it, and seconds by its own clock.
#include <map>

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "trireme/comm/collectives.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/guarded_device.h"

namespace trireme::device_collectives_test {
namespace {

using trireme::testing::guarded_device;

// Operators that this thread calls while it lives, by name.
class Operations {
 public:
  Operations() {
    now_ = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                           ++now_->calls_[function.name()];
                                           return std::unique_ptr<at::ObserverContext>();
                                         }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Operations() { at::removeCallback(handle_); }
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;
  int64_t of(const std::string& name) const { return calls_.contains(name) ? calls_.at(name) : 0; }

 private:
  static thread_local Operations* now_;
  at::CallbackHandle handle_{};
  std::map<std::string, int64_t> calls_;
};
thread_local Operations* Operations::now_ = nullptr;

constexpr int kRanks = 4;
constexpr int64_t kElements = kRanks * 5 * 64 * 1024;  // five of the host's pieces for each rank

struct Scattered {
  at::Tensor share;  // on the CPU
  int64_t additions = 0;
};

// Rank 1's share of a sum of bf16 values in fp32.
Scattered reduce_scatter_on(at::Device device) {
  Scattered result;
  run_ranks_as_threads(kRanks, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1, 2, 3}});
    const at::Tensor values =
        at::arange(kElements, at::kFloat).sin().mul(1 + world.rank()).to(at::kBFloat16).to(device);
    const std::vector<int64_t> rows(kRanks, kElements / kRanks);
    const Operations operations;
    const at::Tensor share = reduce_scatter_sum(*group, values, rows, at::kFloat);
    if (world.rank() != 1) return;
    result = {share.to(at::kCPU), operations.of("aten::add_")};
  });
  return result;
}

TEST(DeviceCollectives, a_sum_over_ranks_is_one_operation_a_rank_and_has_the_hosts_bits) {
  const Scattered host = reduce_scatter_on(at::kCPU), device = reduce_scatter_on(guarded_device());
  EXPECT_EQ(host.additions, 5 * (kRanks - 1)) << "in pieces that stay in the cache";
  EXPECT_EQ(device.additions, kRanks - 1);
  EXPECT_TRUE(at::equal(host.share, device.share));
}

TEST(DeviceCollectives, seconds_are_those_of_the_devices_stream_and_not_of_the_host_that_enqueues) {
  run_ranks_as_threads(2, [](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    at::Tensor values = at::ones({8}, guarded_device()), on_host = at::ones({8});
    all_reduce_sum(*group, values);
    all_reduce_sum(*group, values);
    broadcast(*group, on_host, 0);
    EXPECT_EQ(group->traffic().at("all_reduce_sum").seconds, 2);
    EXPECT_GT(group->traffic().at("broadcast").seconds, 0);
    EXPECT_LT(group->traffic().at("broadcast").seconds, 1);

    // From begin to wait the stream computes: only what the two take from it counts.
    PendingRows pending = begin_all_gather(*group, values, std::vector<int64_t>{8, 8});
    c10::Event between(guarded_device().type());
    for (int mark = 0; mark < 10; ++mark)
      between.record(c10::impl::VirtualGuardImpl(guarded_device().type()).getStream(guarded_device()));
    pending.wait();
    EXPECT_EQ(group->traffic().at("all_gather").seconds, 2);
    EXPECT_EQ(group->traffic().at("all_gather").calls, 1);

    all_reduce_sum(*group, values);
    group->reset_traffic();
    EXPECT_TRUE(group->traffic().empty());
  });
}

}  // namespace
}  // namespace trireme::device_collectives_test
