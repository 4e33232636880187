// Messages of more than 2^31 bytes arrive whole.
#include <gtest/gtest.h>

#include "trireme/comm/collectives.h"

#include "tests/support/ranks.h"

namespace trireme {
namespace {

class LargeMessage : public ::testing::TestWithParam<testing::Backend> {};

constexpr int64_t kBytes = (int64_t{1} << 31) + 12345;

TEST_P(LargeMessage, of_one_rank_to_another_arrives_whole) {
  testing::run_ranks(GetParam(), 2, [](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    const bool sends = world.rank() == 0;
    at::Tensor input = at::zeros({sends ? kBytes : 0}, at::kByte);
    if (sends) {
      input[0] = 1;
      input[(int64_t{1} << 31) - 1] = 2;
      input[int64_t{1} << 31] = 3;
      input[kBytes - 1] = 4;
    }
    const std::vector<int64_t> none{0, 0}, to{0, kBytes}, from{kBytes, 0};
    const at::Tensor got = all_to_all(*group, input, sends ? to : none, sends ? none : from);
    if (sends) return;
    EXPECT_EQ(got[0].item<int>(), 1);
    EXPECT_EQ(got[(int64_t{1} << 31) - 1].item<int>(), 2);
    EXPECT_EQ(got[int64_t{1} << 31].item<int>(), 3);
    EXPECT_EQ(got[kBytes - 1].item<int>(), 4);
    EXPECT_EQ(got.sum().item<int64_t>(), 10);
  });
}

TEST_P(LargeMessage, broadcast_arrives_whole) {
  testing::run_ranks(GetParam(), 2, [](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    at::Tensor tensor = at::zeros({kBytes}, at::kByte);
    if (world.rank() == 1) tensor[kBytes - 1] = 9;
    broadcast(*group, tensor, 1);
    EXPECT_EQ(tensor[kBytes - 1].item<int>(), 9);
  });
}

INSTANTIATE_TEST_SUITE_P(On, LargeMessage,
                         ::testing::Values(testing::Backend::threads, testing::Backend::gloo,
                                           testing::Backend::memory),
                         [](const auto& info) { return testing::name_of(info.param); });

}  // namespace
}  // namespace trireme
