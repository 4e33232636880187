// Many copies in one launch, on a played GPU.
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/kernels/copies_kernel.h"

#include "tests/kernels/played_gpu.h"

namespace trireme::played_copies_test {
namespace {

using played::Array;
using played::Gpu;

// Heads of a packed [s, heads, D] go to one block [s, n, D] for each rank, as an exchange packs them.
template <typename Word>
void expect_packed(int64_t s, const std::vector<int64_t>& heads, int64_t D, int launches,
                   int64_t access_bytes) {
  SCOPED_TRACE(::testing::Message() << s << " tokens, " << heads.size() << " ranks, D " << D);
  const int64_t all = std::accumulate(heads.begin(), heads.end(), int64_t{0});
  std::vector<Word> values(static_cast<size_t>(s * all * D));
  std::iota(values.begin(), values.end(), Word{1});
  Gpu gpu;
  const Array<Word> from = gpu.array(values), to = gpu.array<Word>(s * all * D);
  const auto bytes = static_cast<int64_t>(sizeof(Word));
  std::vector<StridedCopy> copies;
  std::vector<Word> expected;
  int64_t head = 0;
  for (const int64_t n : heads) {
    StridedCopy& copy = copies.emplace_back();
    copy.from = from.data() + head * D;
    copy.to = to.data() + s * head * D;
    copy.from_outer = all * D * bytes;
    copy.to_outer = n * D * bytes;
    copy.from_inner = copy.to_inner = 0;
    copy.outer = s;
    copy.inner = 1;
    copy.run = n * D * bytes;
    for (int64_t t = 0; t < s; ++t)
      for (int64_t i = 0; i < n * D; ++i) expected.push_back(values[(t * all + head) * D + i]);
    head += n;
  }
  launch_copies(copies.data(), static_cast<int64_t>(copies.size()), sizeof(Word), nullptr);
  EXPECT_EQ(to.values(), expected);
  EXPECT_EQ(gpu.counts().launches, launches);
  EXPECT_EQ(gpu.counts().read_bytes, s * all * D * bytes);
  EXPECT_EQ(gpu.counts().written_bytes, s * all * D * bytes);
  EXPECT_EQ(gpu.counts().reads, s * all * D * bytes / access_bytes);
}

TEST(PlayedCopies, pack_heads_for_each_rank_in_one_launch_of_16_bytes_a_thread) {
  expect_packed<uint16_t>(37, {4, 4, 1, 2, 0, 5}, 16, 1, 16);
  expect_packed<uint32_t>(5, {3, 1}, 64, 1, 16);
  expect_packed<uint16_t>(300, {4, 4}, 8, 1, 16);
  expect_packed<uint16_t>(3, std::vector<int64_t>(40, 1), 8, 2, 16);
}

TEST(PlayedCopies, take_runs_and_distances_of_any_size) {
  expect_packed<uint16_t>(11, {3, 2, 1}, 5, 1, 2);
  expect_packed<uint32_t>(7, {1, 2}, 3, 1, 4);
  expect_packed<uint16_t>(2, {1}, 1, 1, 2);
}

TEST(PlayedCopies, have_two_distances_on_each_side) {
  // [2, 3, 8] transposed to [3, 2, 8].
  Gpu gpu;
  std::vector<uint16_t> values(48);
  std::iota(values.begin(), values.end(), uint16_t{0});
  const Array<uint16_t> from = gpu.array(values), to = gpu.array<uint16_t>(48);
  const StridedCopy copy{from.data(), to.data(), 48, 16, 16, 32, 2, 3, 16};
  launch_copies(&copy, 1, 2, nullptr);
  const std::vector<uint16_t> got = to.values();
  for (int64_t a = 0; a < 2; ++a)
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(got[(b * 2 + a) * 8 + i], values[(a * 3 + b) * 8 + i]);
}

}  // namespace
}  // namespace trireme::played_copies_test
