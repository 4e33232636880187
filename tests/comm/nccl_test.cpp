// NCCL as the program uses it, in a group of one rank, which is what a single GPU can show: two ranks cannot
// share one. Skipped where there is no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/comm/collectives.h"
#include "trireme/comm/nccl_backend.h"
#include "trireme/comm/owned_backend.h"
#include "trireme/device/gpu_identity.h"

namespace trireme::nccl_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
  // A group of one that has a backend: its collectives are not the identity, they travel.
  Group group(const std::string& name) {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    const std::chrono::seconds timeout(60);
    return {name, own_backend(make_nccl_backend(store, name, 0, {0}, kGpu, timeout)), {0}, 0, timeout};
  }
  static at::Tensor values(at::ScalarType dtype) {
    return at::arange(300'000, at::TensorOptions(kGpu).dtype(at::kFloat)).sin().mul(100).to(dtype);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(Nccl, moves_bytes_of_every_dtype) {
  Group one = group("bytes");
  barrier(one);
  for (const at::ScalarType dtype :
       {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble, at::kLong, at::kByte}) {
    const at::Tensor x = values(dtype).view({-1, 3});
    const std::vector<int64_t> rows{x.size(0)};
    EXPECT_TRUE(at::equal(all_to_all(one, x, rows, rows), x)) << dtype;
    EXPECT_TRUE(at::equal(all_gather(one, x, rows), x)) << dtype;
    PendingRows gathered = begin_all_gather(one, x, rows), traded = begin_all_to_all(one, x, rows, rows);
    EXPECT_TRUE(at::equal(gathered.wait(), x)) << dtype;
    EXPECT_TRUE(at::equal(traded.wait(), x)) << dtype;
    at::Tensor sent = x.clone();
    broadcast(one, sent, 0);
    EXPECT_TRUE(at::equal(sent, x)) << dtype;
  }
  const at::Tensor nothing = at::empty({0, 3}, at::TensorOptions(kGpu));
  EXPECT_EQ(all_to_all(one, nothing, std::vector<int64_t>{0}, std::vector<int64_t>{0}).size(0), 0);
}

TEST_F(Nccl, sums_of_one_rank_are_its_values) {
  Group one = group("sums");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble, at::kLong}) {
    const at::Tensor x = values(dtype);
    for (const auto reduce : {all_reduce_sum, all_reduce_max}) {
      at::Tensor sum = x.clone();
      reduce(one, sum);
      EXPECT_TRUE(at::equal(sum, x)) << dtype;
    }
    EXPECT_TRUE(at::equal(reduce_scatter_sum(one, x, std::vector<int64_t>{x.size(0)}), x)) << dtype;
  }
  const at::Tensor narrow = values(at::kBFloat16);
  EXPECT_TRUE(at::equal(reduce_scatter_sum(one, narrow, std::vector<int64_t>{narrow.size(0)}, at::kFloat),
                        narrow.to(at::kFloat)));
}

// A collective runs on a stream of NCCL's: it must come after what made its input, and before what uses its
// result.
TEST_F(Nccl, waits_for_what_makes_its_input_and_its_result_is_waited_for) {
  Group one = group("order");
  at::Tensor x = at::full({4096, 4096}, 1.0 / 64, at::TensorOptions(kGpu).dtype(at::kFloat));
  const std::vector<int64_t> rows{x.size(0)};
  for (int round = 0; round < 20; ++round) {
    const at::Tensor product = at::mm(x, x).mul_(1.0 / 64);  // 1/64 again, some milliseconds later
    x = all_gather(one, product, rows);
    all_reduce_sum(one, x);
  }
  EXPECT_EQ(x.min().item<float>(), 1.0F / 64);
  EXPECT_EQ(x.max().item<float>(), 1.0F / 64);
}

TEST_F(Nccl, seconds_are_those_of_the_gpu) {
  Group one = group("seconds");
  at::Tensor x = at::ones({64 << 20}, at::TensorOptions(kGpu).dtype(at::kFloat));
  for (int round = 0; round < 3; ++round) broadcast(one, x, 0);
  one.reset_traffic();
  const std::vector<int64_t> rows{x.size(0)};
  all_to_all(one, x, rows, rows);
  // 256 MiB are copied: at 8 TB/s that takes 60 us, and to enqueue it far less than a second.
  EXPECT_GT(one.traffic().at("all_to_all").seconds, 2e-5);
  EXPECT_LT(one.traffic().at("all_to_all").seconds, 1);
}

TEST_F(Nccl, closes_in_order_when_its_last_user_goes_and_at_once_while_an_error_unwinds) {
  ::testing::internal::CaptureStderr();
  for (int round = 0; round < 3; ++round) {
    Group one = group("again");
    at::Tensor x = values(at::kFloat);
    all_reduce_sum(one, x);
  }
  try {
    Group one = group("unwound");
    at::Tensor x = values(at::kFloat);
    all_reduce_sum(one, x);
    throw std::runtime_error("a peer is lost");
  } catch (const std::runtime_error&) {
  }
  group("never used");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::Not(::testing::HasSubstr("destroy_process_group")));
}

TEST_F(Nccl, knows_its_gpu_by_name) {
  EXPECT_THAT(gpu_identity(kGpu).bus,
              ::testing::MatchesRegex("[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+.[0-9]"));
  EXPECT_EQ(gpu_identity(kGpu).uuid.size(), 32);
  EXPECT_NE(gpu_identity(kGpu).uuid, std::string(32, '0'));
}

}  // namespace
}  // namespace trireme::nccl_test
