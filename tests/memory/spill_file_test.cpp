#include "trireme/memory/spill_file.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <linux/magic.h>
#include <random>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/memory/open_file.h"
#include "tests/support/byte_units.h"
#include "tests/support/error_message.h"
#include "tests/support/small_files.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kMiB;
using trireme::testing::bytes_on_disk;
using trireme::testing::message_of;
using trireme::testing::open_file_in;
using trireme::testing::SmallFiles;
using trireme::testing::TemporaryFolder;

std::vector<uint64_t> random_words(int64_t bytes, uint64_t seed) {
  std::vector<uint64_t> words(static_cast<size_t>((bytes + 7) / 8));
  std::mt19937_64 random(seed);
  std::generate(words.begin(), words.end(), std::ref(random));
  return words;
}

void write_now(SpillFile& file, const SpillFile::Region& region, const void* data) {
  file.write(region, data).wait();
}

TEST(SpillFile, reads_back_what_was_written_at_any_size_in_any_order) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const std::vector<int64_t> sizes = {1,        63,           4095,          4096, 4097, 8 * kMiB - 1,
                                      8 * kMiB, 8 * kMiB + 1, 20 * kMiB + 5, 100};
  std::vector<SpillFile::Region> regions;
  std::vector<std::vector<uint64_t>> data;
  std::vector<SpillFile::Transfer> transfers;
  for (const int64_t bytes : sizes) {
    regions.push_back(file.reserve(bytes));
    data.push_back(random_words(bytes, static_cast<uint64_t>(bytes)));
    transfers.push_back(file.write(regions.back(), data.back().data()));
  }
  for (SpillFile::Transfer& transfer : transfers) transfer.wait();
  std::vector<std::vector<uint64_t>> read(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    read[i].resize(data[i].size());
    transfers[i] = file.read(regions[i], read[i].data());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    transfers[i].wait();
    EXPECT_FALSE(transfers[i].pending());
    EXPECT_EQ(std::memcmp(read[i].data(), data[i].data(), static_cast<size_t>(sizes[i])), 0) << sizes[i];
  }
}

TEST(SpillFile, a_part_of_a_region_can_be_read_and_nothing_takes_no_space) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 4096);
  const SpillFile::Region region = file.reserve(4096), empty = file.reserve(0);
  const auto data = random_words(4096, 1);
  write_now(file, region, data.data());
  uint64_t word = 0;
  file.read({region.offset + 8, 8}, &word).wait();
  EXPECT_EQ(word, data[1]);
  write_now(file, empty, nullptr);
  file.read(empty, nullptr).wait();
  file.release(empty);
  EXPECT_EQ(file.reserved_bytes(), 4096);
}

TEST(SpillFile, lets_the_owner_of_written_memory_go_by_itself) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  auto data = std::make_shared<std::vector<uint64_t>>(random_words(kMiB, 2));
  const void* bytes = data->data();
  const std::weak_ptr<std::vector<uint64_t>> watched = data;
  SpillFile::Transfer transfer = file.write(file.reserve(kMiB), bytes, std::move(data));
  transfer.wait();
  EXPECT_TRUE(watched.expired());
}

TEST(SpillFile, serves_threads_at_once) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), int64_t{4} * 53248);  // what four threads hold at most
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&file, thread] {
      for (uint64_t round = 0; round < 50; ++round) {
        const auto bytes = static_cast<int64_t>(1 + (thread * 7919 + round * 104729) % 50000);
        const auto data = random_words(bytes, thread * 1000 + round);
        std::vector<uint64_t> read(data.size());
        const SpillFile::Region region = file.reserve(bytes);
        write_now(file, region, data.data());
        file.read(region, read.data()).wait();
        EXPECT_EQ(std::memcmp(read.data(), data.data(), static_cast<size_t>(bytes)), 0);
        file.release(region);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(file.reserved_bytes(), 0);
}

TEST(SpillFile, a_destroyed_file_has_finished_what_was_asked) {
  const TemporaryFolder folder;
  const auto data = random_words(4 * kMiB, 3);
  SpillFile::Transfer left;
  {
    SpillFile file(folder.path(), 0);
    for (int i = 0; i < 4; ++i) left = file.write(file.reserve(4 * kMiB), data.data());
  }
  EXPECT_FALSE(left.pending());
  left.wait();
}

TEST(SpillFile, takes_blocks_when_it_reserves_and_gives_them_back_when_it_releases) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const auto open = open_file_in(folder.path());
  const SpillFile::Region first = file.reserve(3 * kMiB - 5), second = file.reserve(kMiB);
  EXPECT_EQ(file.reserved_bytes(), 4 * kMiB);
  EXPECT_GE(bytes_on_disk(open), 4 * kMiB);
  file.release(first);
  EXPECT_EQ(file.reserved_bytes(), kMiB);
  EXPECT_LT(bytes_on_disk(open), 2 * kMiB);
  file.release(second);
  EXPECT_EQ(file.reserved_bytes(), 0);
}

TEST(SpillFile, written_bytes_leave_the_page_cache) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const int64_t bytes = 48 * kMiB;
  const auto data = random_words(bytes, 4);
  const auto cached = [&] {
    const int descriptor = ::open(open_file_in(folder.path()).c_str(), O_RDWR);
    const auto pages = static_cast<size_t>(bytes / 4096);
    void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, descriptor, 0);
    std::vector<unsigned char> resident(pages);
    EXPECT_EQ(::mincore(mapped, static_cast<size_t>(bytes), resident.data()), 0);
    ::munmap(mapped, static_cast<size_t>(bytes));
    ::close(descriptor);
    return std::count_if(resident.begin(), resident.end(),
                         [](unsigned char page) { return (page & 1) != 0; }) *
           int64_t{4096};
  };
  struct statfs system = {};
  ASSERT_EQ(::statfs(folder.path().c_str(), &system), 0);
  // Where the folder itself lies in memory, that is where they are.
  const int64_t most = system.f_type == TMPFS_MAGIC ? bytes : bytes / 4;
  const SpillFile::Region region = file.reserve(bytes);
  write_now(file, region, data.data());
  EXPECT_LE(cached(), most);
  std::vector<uint64_t> read(data.size());
  file.read(region, read.data()).wait();
  EXPECT_LE(cached(), most);
  EXPECT_EQ(read, data);
}

TEST(SpillFile, the_limit_is_a_config_error_with_the_numbers_and_changes_nothing) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 5 * 4096);
  const SpillFile::Region region = file.reserve(3 * 4096);
  EXPECT_THAT(message_of<ConfigError>([&] { file.reserve(2 * 4096 + 1); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("8193 bytes"), HasSubstr("12288 bytes"),
                    HasSubstr("20480 bytes"), HasSubstr("--offload_limit")));
  EXPECT_EQ(file.reserved_bytes(), 3 * 4096);
  file.release(region);
  file.release(file.reserve(5 * 4096));
}

TEST(SpillFile, a_full_disk_is_a_data_error_with_the_numbers_and_is_seen_before_it_is_filled) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  file.reserve(4096);
  const auto free = static_cast<int64_t>(std::filesystem::space(folder.path()).available);
  const int64_t asked = free + (int64_t{1} << 40);
  EXPECT_THAT(message_of<DataError>([&] { file.reserve(asked); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr(cat(asked, " bytes")),
                    HasSubstr("4.0 KiB (4096 bytes) in use"), HasSubstr("free"), HasSubstr("--offload_dir"),
                    HasSubstr("--offload_limit")));
  EXPECT_EQ(file.reserved_bytes(), 4096);
  EXPECT_LE(bytes_on_disk(open_file_in(folder.path())), kMiB);
}

TEST(SpillFile, blocks_that_the_system_refuses_are_a_data_error_and_the_space_stays_usable) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  {
    const SmallFiles small(64 << 10);
    const SpillFile::Region fits = file.reserve(32 << 10);
    EXPECT_THAT(message_of<DataError>([&] { file.reserve(kMiB); }),
                AllOf(HasSubstr(folder.path().string()), HasSubstr("1048576 bytes"),
                      HasSubstr("32.0 KiB (32768 bytes) in use"), HasSubstr("too large")));
    EXPECT_EQ(file.reserved_bytes(), 32 << 10);
    file.release(fits);
  }
  const auto data = random_words(kMiB, 5);
  std::vector<uint64_t> read(data.size());
  const SpillFile::Region region = file.reserve(kMiB);
  EXPECT_EQ(region.offset, 0);
  write_now(file, region, data.data());
  file.read(region, read.data()).wait();
  EXPECT_EQ(read, data);
}

TEST(SpillFile, a_write_that_fails_is_told_by_wait_each_time_and_the_next_one_works) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  const SpillFile::Region low = file.reserve(4096), high = file.reserve(kMiB);
  const auto data = random_words(kMiB, 6);
  {
    const SmallFiles small(4096);
    SpillFile::Transfer transfer = file.write(high, data.data());
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(message_of<DataError>([&] { transfer.wait(); }),
                  AllOf(HasSubstr(folder.path().string()), HasSubstr("writing"), HasSubstr("1048576 bytes"),
                        HasSubstr("at offset 4096"), HasSubstr("--offload_dir")));
    write_now(file, low, data.data());
  }
  write_now(file, high, data.data());
}

TEST(SpillFile, a_read_beyond_the_end_is_told_by_wait) {
  const TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  std::vector<char> data(100);
  SpillFile::Transfer transfer = file.read({1 << 30, 100}, data.data());
  EXPECT_THAT(message_of<DataError>([&] { transfer.wait(); }),
              AllOf(HasSubstr("reading"), HasSubstr("100 bytes"), HasSubstr("the file ends")));
}

TEST(SpillFile, a_folder_that_is_not_one_is_a_config_error) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { const SpillFile file(folder / "absent", 0); }),
              AllOf(HasSubstr("absent"), HasSubstr("No such file"), HasSubstr("--offload_dir")));
  EXPECT_THAT(message_of<ConfigError>([&] { const SpillFile file(folder.write("a_file", "x"), 0); }),
              AllOf(HasSubstr("a_file"), HasSubstr("Not a directory")));
  EXPECT_THAT(message_of<ConfigError>([&] { const SpillFile file("", 0); }), HasSubstr("--offload_dir"));
}

}  // namespace
}  // namespace trireme
