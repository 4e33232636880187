// Sums over ranks whose blocks are read piece by piece, against plain loops over their numbers: the same bits
// for every rank that sums, any number of pieces and threads, in place or not.
#include "trireme/comm/rank_order_sum.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/comm/collectives_bytes.h"

namespace trireme::rank_order_sum_test {
namespace {

// Of magnitudes so far apart that another order gives other bits.
float number(int rank, int64_t i) {
  const auto spread = static_cast<float>((i * 2654435761U + static_cast<uint32_t>(rank) * 40503U) % 1021);
  return (spread - 510.0F) * (rank % 2 == 0 ? 1.0F : 3.0e-6F);
}

at::Tensor block_of(int rank, int64_t elements, at::ScalarType dtype) {
  at::Tensor block = at::empty({elements}, at::kFloat);
  for (int64_t i = 0; i < elements; ++i) block.data_ptr<float>()[i] = number(rank, i);
  return block.to(dtype);
}

// fp32 sums, in rank order, of the numbers as the blocks have them.
std::vector<float> expected(const std::vector<at::Tensor>& blocks, Reduction reduction) {
  std::vector<float> result;
  for (const at::Tensor& block : blocks) {
    const at::Tensor wide = block.to(at::kFloat);
    const float* values = wide.data_ptr<float>();
    if (result.empty()) {
      result.assign(values, values + wide.numel());
      continue;
    }
    for (size_t i = 0; i < result.size(); ++i)
      result[i] = reduction == c10d::ReduceOp::SUM ? result[i] + values[i] : std::max(result[i], values[i]);
  }
  return result;
}

struct Case {
  int ranks;
  int64_t elements;
  at::ScalarType dtype, result;
  Reduction reduction;
};

void expect_the_sum_in_rank_order(const Case& of, bool in_place) {
  std::vector<at::Tensor> blocks;
  blocks.reserve(static_cast<size_t>(of.ranks));
  for (int rank = 0; rank < of.ranks; ++rank) blocks.push_back(block_of(rank, of.elements, of.dtype));
  const std::vector<float> wanted = expected(blocks, of.reduction);
  for (int rank = 0; rank < of.ranks; ++rank) {
    const at::Tensor own = blocks[rank].clone();
    const at::Tensor output = in_place ? own : at::full({of.elements}, -7, own.options().dtype(of.result));
    const auto read = [&](int peer, int64_t begin, const at::Tensor& to) {
      ASSERT_NE(peer, rank);
      to.copy_(blocks[peer].narrow(0, begin, to.size(0)));
    };
    reduce_readable({of.ranks, rank, own, read}, of.reduction, output);
    const at::Tensor rounded = at::tensor(wanted).to(of.result);
    EXPECT_TRUE(at::equal(output, rounded))
        << of.ranks << " ranks, rank " << rank << ", " << of.elements << " of " << of.dtype << " to "
        << of.result << (in_place ? " in place" : "");
  }
}

class RankOrderSum : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam()); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_P(RankOrderSum, is_that_of_plain_loops_whoever_sums) {
  for (const int ranks : {1, 2, 3, 5})
    for (const int64_t elements : {int64_t{1}, int64_t{1000}, 3 * kSumPieceOnHost_elements + 17})
      for (const auto reduction : {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX})
        for (const auto& [dtype, result] : {std::pair{at::kFloat, at::kFloat},
                                            {at::kBFloat16, at::kFloat},
                                            {at::kBFloat16, at::kBFloat16},
                                            {at::kHalf, at::kFloat}}) {
          const Case of{ranks, elements, dtype, result, reduction};
          expect_the_sum_in_rank_order(of, /*in_place=*/false);
          if (dtype == result) expect_the_sum_in_rank_order(of, /*in_place=*/true);
        }
}

INSTANTIATE_TEST_SUITE_P(Threads, RankOrderSum, ::testing::Values(1, 3));

TEST_P(RankOrderSum, ends_by_what_a_reader_throws) {
  const int64_t elements = 3 * kSumPieceOnHost_elements;
  const auto read = [](int, int64_t begin, const at::Tensor&) {
    if (begin > 0) throw std::runtime_error("the rank has ended");
  };
  const at::Tensor own = block_of(1, elements, at::kFloat);
  EXPECT_THROW(reduce_readable({2, 1, own, read}, c10d::ReduceOp::SUM, own), std::runtime_error);
}

TEST(RankOrderSum, of_nothing_reads_nothing) {
  const at::Tensor empty = at::empty({0});
  reduce_readable({2, 0, empty, [](int, int64_t, const at::Tensor&) { FAIL(); }}, c10d::ReduceOp::SUM, empty);
}

}  // namespace
}  // namespace trireme::rank_order_sum_test
