// What a collective costs on a device: operations that are given to it, and seconds by its own clock.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "trireme/comm/backend_library.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/owned_backend.h"
#include "trireme/comm/post_board_backend.h"
#include "trireme/comm/rank_order_sum.h"
#include "trireme/comm/thread_post_board.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/called_operators.h"
#include "tests/support/guarded_device.h"

namespace trireme::device_collectives_test {
namespace {

using trireme::testing::guarded_device;

constexpr int kRanks = 4;
constexpr int64_t kElements = kRanks * 5 * 64 * 1024;  // five of the host's pieces for each rank

struct Sum {
  at::Tensor values;  // on the CPU
  int64_t additions = 0;
};

at::Tensor values_of(int rank, at::Device device) {
  return at::arange(kElements, at::kFloat).sin().mul(1 + rank).to(at::kBFloat16).to(device);
}

// Of every rank's bf16 values in fp32, where they are blocks of one tensor.
Sum sum_of_blocks_on(at::Device device) {
  std::vector<at::Tensor> blocks;
  blocks.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) blocks.push_back(values_of(rank, device));
  const at::Tensor all = at::stack(blocks);
  const testing::CalledOperators operations;
  const at::Tensor sum = reduce_blocks(all, c10d::ReduceOp::SUM, at::kFloat);
  return {sum.to(at::kCPU), operations.of("aten::add")};
}

// Rank 1's share, where ranks read each other's values.
Sum reduce_scatter_on(at::Device device) {
  Sum result;
  run_ranks_as_threads(kRanks, [&](World& world) {
    at::set_num_threads(1);
    const auto group = world.make_group("all", {{0, 1, 2, 3}});
    const std::vector<int64_t> rows(kRanks, kElements / kRanks);
    const at::Tensor values = values_of(world.rank(), device);
    const testing::CalledOperators operations;
    const at::Tensor share = reduce_scatter_sum(*group, values, rows, at::kFloat);
    if (world.rank() == 1) result = {share.to(at::kCPU), operations.of("aten::add")};
  });
  return result;
}

TEST(DeviceCollectives, a_sum_over_ranks_is_one_operation_a_rank_and_has_the_hosts_bits) {
  const Sum host = sum_of_blocks_on(at::kCPU), device = sum_of_blocks_on(guarded_device());
  EXPECT_EQ(host.additions, kRanks * 5 * (kRanks - 1)) << "in pieces that stay in the cache";
  EXPECT_EQ(device.additions, kRanks - 1);
  EXPECT_TRUE(at::equal(host.values, device.values));
  const Sum read_by_host = reduce_scatter_on(at::kCPU), read_by_device = reduce_scatter_on(guarded_device());
  EXPECT_EQ(read_by_host.additions, 5 * (kRanks - 1));
  EXPECT_EQ(read_by_device.additions, kRanks - 1);
  const at::Tensor of_rank_1 = host.values.view({kRanks, -1})[1];
  EXPECT_TRUE(at::equal(read_by_host.values, of_rank_1));
  EXPECT_TRUE(at::equal(read_by_device.values, of_rank_1));
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

// How a single GPU reaches NCCL (nccl_test.cpp).
TEST(DeviceCollectives, of_a_group_of_one_that_has_a_backend_travel_and_give_what_the_identity_gives) {
  const auto meeting = std::make_shared<ThreadMeeting>(std::vector<int>{0});
  const std::chrono::seconds timeout(30);
  for (const at::Device device : {at::Device(at::kCPU), guarded_device()})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Group one("one",
                own_backend(make_post_board_backend(kThreadBackend,
                                                    std::make_unique<ThreadPostBoard>(meeting, 0), timeout)),
                {0}, 0, timeout);
      const at::Tensor x = at::arange(9000).view({-1, 3}).to(dtype).to(device);
      const std::vector<int64_t> rows{x.size(0)};
      PendingRows gathered = begin_all_gather(one, x, rows), traded = begin_all_to_all(one, x, rows, rows);
      at::Tensor sum = x.clone(), largest = x.clone(), sent = x.clone();
      all_reduce_sum(one, sum);
      all_reduce_max(one, largest);
      broadcast(one, sent, 0);
      barrier(one);
      for (const at::Tensor& y :
           {gathered.wait(), traded.wait(), all_gather(one, x, rows), all_to_all(one, x, rows, rows),
            reduce_scatter_sum(one, x, rows), sum, largest, sent})
        EXPECT_TRUE(at::equal(y, x)) << dtype << " on " << device;
      for (const char* name : {"all_gather", "all_to_all", "reduce_scatter_sum", "all_reduce_sum",
                               "all_reduce_max", "broadcast", "barrier"}) {
        EXPECT_GE(one.traffic().at(name).calls, 1) << name;
        EXPECT_EQ(one.traffic().at(name).sent_bytes, 0) << name;
      }
    }
}

}  // namespace
}  // namespace trireme::device_collectives_test
