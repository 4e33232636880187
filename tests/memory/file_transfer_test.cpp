// Transfers between memory and a file: what is read is what was written, at any address and size, past the
// page cache and through it.
#include "trireme/memory/file_transfer.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/memory/nameless_file.h"

#include "tests/support/byte_units.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using testing::kMiB;
using trireme::testing::TemporaryFolder;

std::vector<char> random_bytes(int64_t bytes, uint64_t seed) {
  std::vector<char> data(static_cast<size_t>(bytes));
  std::mt19937_64 random(seed);
  std::generate(data.begin(), data.end(), [&] { return static_cast<char>(random()); });
  return data;
}

class FileTransfers : public ::testing::TestWithParam<FileTransfer::Access> {
 protected:
  void grow(int64_t bytes) const { ASSERT_EQ(::ftruncate(file_.get(), bytes), 0); }

  const TemporaryFolder folder_;
  const FileDescriptor file_ = open_nameless_file(folder_.path());
  const FileTransfer transfer_{file_.get(), GetParam()};
};

INSTANTIATE_TEST_SUITE_P(ways, FileTransfers,
                         ::testing::Values(FileTransfer::Access::automatic, FileTransfer::Access::page_cache),
                         [](const auto& access) {
                           return access.param == FileTransfer::Access::automatic ? "automatic"
                                                                                  : "page_cache";
                         });

TEST_P(FileTransfers, bring_back_what_was_written_from_any_address_at_any_size) {
  for (const int64_t bytes :
       {int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, kMiB - 1, kMiB + 4096, 9 * kMiB + 5})
    for (const int64_t shift : {0, 64, 4095}) {
      const std::vector<char> data = random_bytes(bytes, static_cast<uint64_t>(bytes + shift));
      grow(4096 + (bytes + 4095) / 4096 * 4096);
      // An address at a block's address, and the shift from it.
      std::vector<char> room(static_cast<size_t>(bytes + 2 * 4096));
      auto* block = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(room.data()) + 4095) / 4096 * 4096);
      std::memcpy(block + shift, data.data(), data.size());
      ASSERT_EQ(transfer_.write(4096, block + shift, bytes), "");
      std::fill(room.begin(), room.end(), 'x');
      ASSERT_EQ(transfer_.read(4096, block + shift, bytes), "");
      EXPECT_EQ(std::memcmp(block + shift, data.data(), data.size()), 0) << bytes << " at " << shift;
      // Nothing before or behind was touched.
      EXPECT_EQ(std::count(room.data(), block + shift, 'x'), block + shift - room.data());
      const char* end = block + shift + bytes;
      EXPECT_EQ(std::count(end, static_cast<const char*>(room.data() + room.size()), 'x'),
                room.data() + room.size() - end);
    }
}

TEST_P(FileTransfers, read_any_part) {
  const std::vector<char> data = random_bytes(3 * kMiB, 1);
  grow(3 * kMiB);
  ASSERT_EQ(transfer_.write(0, data.data(), 3 * kMiB), "");
  for (const auto& [begin, bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {8, 8}, {4095, 2}, {4096, 8192}, {5000, 2 * kMiB}, {3 * kMiB - 1, 1}}) {
    std::vector<char> part(static_cast<size_t>(bytes));
    ASSERT_EQ(transfer_.read(begin, part.data(), bytes), "");
    EXPECT_EQ(std::memcmp(part.data(), data.data() + begin, part.size()), 0) << begin << "+" << bytes;
  }
}

TEST_P(FileTransfers, tell_how_far_they_came_where_the_file_ends) {
  const std::vector<char> data = random_bytes(9 * kMiB, 2);
  grow(8 * kMiB);
  std::vector<char> read(static_cast<size_t>(9 * kMiB));
  const std::string problem = transfer_.read(0, read.data(), 9 * kMiB);
  EXPECT_NE(problem.find("the file ends after"), std::string::npos) << problem;
}

TEST_P(FileTransfers, leave_nothing_in_the_page_cache) {
  const int64_t bytes = 16 * kMiB;
  const std::vector<char> data = random_bytes(bytes, 3);
  grow(bytes);
  std::vector<char> read(data.size());
  ASSERT_EQ(transfer_.write(0, data.data(), bytes), "");
  ASSERT_EQ(transfer_.read(0, read.data(), bytes), "");
  if (GetParam() == FileTransfer::Access::automatic && !transfer_.past_page_cache())
    GTEST_SKIP() << "the file system of " << folder_.path() << " has no O_DIRECT";
  void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, file_.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> resident(static_cast<size_t>(bytes / ::sysconf(_SC_PAGESIZE)));
  ASSERT_EQ(::mincore(mapped, static_cast<size_t>(bytes), resident.data()), 0);
  ::munmap(mapped, static_cast<size_t>(bytes));
  const auto cached =
      std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; });
  // Through the cache, what is still being written back cannot be dropped.
  EXPECT_LE(cached, transfer_.past_page_cache() ? 0 : static_cast<int64_t>(resident.size()) / 2);
}

TEST(FileTransfer, leaves_the_file_empty_when_it_tries_what_works) {
  const TemporaryFolder folder;
  const FileDescriptor file = open_nameless_file(folder.path());
  const FileTransfer transfer(file.get());
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), 0);
}

}  // namespace
}  // namespace trireme
