#include "trireme/base/read_ahead.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

class RangesAhead : public ::testing::Test {
 protected:
  static constexpr int64_t kRange = 1000, kRanges = 50;
  static std::string content() {
    std::string text;
    for (int64_t i = 0; i < kRange * kRanges; ++i) text += static_cast<char>(i * i % 251);
    return text;
  }
  std::vector<std::byte*> buffers() {
    std::vector<std::byte*> begins;
    for (auto& buffer : memory_) begins.push_back(buffer.data());
    return begins;
  }
  static std::vector<ReadAhead::Range> ranges(const InputFile& file) {
    std::vector<ReadAhead::Range> all;
    for (int64_t i = 0; i < kRanges; ++i) all.push_back({&file, i * kRange, kRange});
    return all;
  }

  TemporaryFolder folder_;
  std::array<std::array<std::byte, kRange>, 3> memory_;
};

TEST_F(RangesAhead, come_in_order_and_stay_until_the_second_call_after) {
  const std::string text = content();
  const InputFile file(folder_.write("a", text));
  ReadAhead stream(ranges(file), buffers());
  const auto equals = [&](const std::byte* bytes, int64_t range) {
    return std::memcmp(bytes, text.data() + range * kRange, kRange) == 0;
  };
  const std::byte* before = nullptr;
  for (int64_t i = 0; i < kRanges; ++i) {
    const std::byte* bytes = stream.next();
    // What the reader may read by now, it has read.
    while (file.read_bytes() < std::min(i + 2, kRanges) * kRange) std::this_thread::yield();
    EXPECT_TRUE(equals(bytes, i)) << i;
    EXPECT_TRUE(before == nullptr || equals(before, i - 1)) << i;
    EXPECT_LE(file.read_bytes(), (i + 2) * kRange) << "of three buffers, two are in use";
    before = bytes;
  }
  EXPECT_EQ(file.read_bytes(), kRange * kRanges);
  EXPECT_THROW(stream.next(), InternalError);
}

TEST_F(RangesAhead, a_file_that_was_cut_is_told_where_its_bytes_are_asked_for) {
  const auto path = folder_.write("a", content());
  const InputFile file(path);
  std::filesystem::resize_file(path, 5 * kRange + 1);
  ReadAhead stream(ranges(file), buffers());
  for (int i = 0; i < 5; ++i) stream.next();
  EXPECT_THAT(testing::message_of<DataError>([&] { stream.next(); }), HasSubstr("ends at byte 5001"));
}

TEST_F(RangesAhead, that_nobody_asks_for_hold_nobody_up) {
  const InputFile file(folder_.write("a", content()));
  {
    ReadAhead stream(ranges(file), buffers());
    stream.next();
  }
  EXPECT_LE(file.read_bytes(), 3 * kRange);
}

}  // namespace
}  // namespace trireme
