#include "trireme/train/checksum.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

TEST(DigestOfSpreadBlocks, sees_a_change_of_the_first_a_middle_and_the_last_block) {
  constexpr int64_t kBytes = (int64_t{32} << 20) + 7, kBlockBytes = int64_t{64} << 10, kBlocks = 256;
  const testing::TemporaryFolder folder;
  const auto file = folder.write("tokens", "");
  std::filesystem::resize_file(file, kBytes);  // sparse
  std::set<uint64_t> digests{digest_of_spread_blocks(file, kBlocks).value()};
  for (const int64_t block : {int64_t{0}, int64_t{100}, kBlocks - 1}) {
    const int64_t begin = (kBytes - kBlockBytes) * block / (kBlocks - 1);
    for (const int64_t offset : {begin, begin + kBlockBytes - 1}) {
      std::fstream(file, std::ios::binary | std::ios::in | std::ios::out).seekp(offset).put('x');
      digests.insert(digest_of_spread_blocks(file, kBlocks).value());
    }
  }
  EXPECT_EQ(digests.size(), 1U + 3 * 2);
}

TEST(DigestOfSpreadBlocks, of_a_smaller_file_sees_its_ends_and_the_edge_of_a_block) {
  const testing::TemporaryFolder folder;
  std::string bytes(200'000, '\0');
  std::set<uint64_t> digests;
  for (const size_t offset : {size_t{0}, size_t{65'535}, size_t{65'536}, size_t{199'999}}) {
    digests.insert(digest_of_spread_blocks(folder.write("tokens", bytes), 256).value());
    bytes[offset] = 'x';
  }
  digests.insert(digest_of_spread_blocks(folder.write("tokens", bytes), 256).value());
  EXPECT_EQ(digests.size(), 5U);
}

}  // namespace
}  // namespace trireme
