#include "trireme/train/remembered_checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/train/checksum.h"

#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Remembered : public ::testing::Test {
 protected:
  Remembered() {
    write("a.txt", "some text", std::chrono::hours(2));
    write("b.txt", "more of it", std::chrono::hours(2));
  }
  fs::path write(const std::string& name, const std::string& text, std::chrono::nanoseconds age) const {
    fs::path file = folder_.write("corpus/" + name, text);
    fs::last_write_time(file, now_ - std::chrono::duration_cast<fs::file_time_type::duration>(age));
    return file;
  }
  fs::path remembered() const { return folder_ / "data/sources.json"; }
  // As a start of a run finds them.
  std::vector<uint64_t> checksums(const std::vector<std::string>& names = {"a.txt", "b.txt"}) {
    told_.clear();
    std::vector<fs::path> files;
    files.reserve(names.size());
    for (const std::string& name : names) files.push_back(folder_ / "corpus" / name);
    std::vector<uint64_t> checksums;
    for (const FileContent& content : RememberedChecksums(remembered(), [&](const std::string& text) {
                                        told_ += text;
                                      }).of(folder_ / "corpus", files))
      checksums.push_back(content.xxh3);
    return checksums;
  }
  uint64_t read(const std::string& name) const { return file_checksum(folder_ / "corpus" / name); }

  testing::TemporaryFolder folder_;
  fs::file_time_type now_ = fs::file_time_type::clock::now();
  std::string told_;
};

TEST_F(Remembered, are_those_of_the_files_and_a_file_that_is_as_it_was_is_not_read_again) {
  const std::vector<uint64_t> first = checksums();
  EXPECT_THAT(first, ElementsAre(read("a.txt"), read("b.txt")));
  const std::string kept = testing::bytes_of(remembered());
  // What nobody sees: other bytes of the same number under the same time. Whoever read the file would.
  write("a.txt", "SOME TEXT", std::chrono::hours(2));
  EXPECT_EQ(checksums(), first);
  EXPECT_EQ(testing::bytes_of(remembered()), kept);
}

TEST_F(Remembered, a_file_of_another_time_or_size_is_read_and_remembered_anew) {
  const std::vector<uint64_t> first = checksums();
  write("a.txt", "SOME TEXT", std::chrono::hours(2) - std::chrono::nanoseconds(1000));
  write("b.txt", "less of", std::chrono::hours(2));
  const std::vector<uint64_t> second = checksums();
  EXPECT_THAT(second, ElementsAre(read("a.txt"), read("b.txt")));
  EXPECT_NE(second, first);
  const std::string kept = testing::bytes_of(remembered());
  EXPECT_EQ(checksums(), second);
  EXPECT_EQ(testing::bytes_of(remembered()), kept);
}

TEST_F(Remembered, a_file_goes_by_its_own_name) {
  checksums();
  fs::rename(folder_ / "corpus/a.txt", folder_ / "corpus/c.txt");
  write("b.txt", "MORE OF IT", std::chrono::hours(1));
  fs::rename(folder_ / "corpus/b.txt", folder_ / "corpus/a.txt");
  EXPECT_THAT(checksums({"a.txt", "c.txt"}), ElementsAre(read("a.txt"), read("c.txt")));
}

// Its next write might have the same time.
TEST_F(Remembered, a_file_that_was_written_just_now_is_read_again_at_each_start) {
  write("a.txt", "some text", std::chrono::milliseconds(10));
  checksums();
  EXPECT_FALSE(read_json(remembered())["sources"].begin()->contains("a.txt"));
  EXPECT_TRUE(read_json(remembered())["sources"].begin()->contains("b.txt"));
  write("a.txt", "SOME TEXT", std::chrono::milliseconds(10));
  EXPECT_EQ(checksums().front(), read("a.txt"));
}

TEST_F(Remembered, what_is_damaged_is_told_never_used_and_made_again) {
  const std::vector<uint64_t> first = checksums();
  const std::string kept = testing::bytes_of(remembered());
  std::string other_checksum = kept;
  const std::string digits = checksum_text(first[0]);
  other_checksum.replace(other_checksum.find(digits), digits.size(), "0123456789abcdef");
  Json other_format = Json::parse(kept);
  other_format["format"] = 2;
  for (const std::string& damaged : {other_checksum, kept.substr(0, kept.size() / 2), std::string("{}"),
                                     std::string(), std::string("[1]"), other_format.dump()}) {
    folder_.write("data/sources.json", damaged);
    EXPECT_EQ(checksums(), first) << damaged;
    EXPECT_THAT(told_, HasSubstr(remembered().string())) << damaged;
    EXPECT_EQ(testing::bytes_of(remembered()), kept) << damaged;
    checksums();
    EXPECT_THAT(told_, IsEmpty()) << "once";
  }
}

TEST_F(Remembered, are_none_where_they_cannot_be_written_and_that_is_told) {
  folder_.write("data", "a file instead of the folder");
  EXPECT_THAT(checksums(), ElementsAre(read("a.txt"), read("b.txt")));
  EXPECT_THAT(told_, HasSubstr("not remembered"));
}

// JSON cannot hold it.
TEST_F(Remembered, a_name_that_is_no_utf_8_is_read_each_time) {
  write("\xff.txt", "text", std::chrono::hours(2));
  for (int start = 0; start < 2; ++start)
    EXPECT_THAT(checksums({"a.txt", "\xff.txt"}), ElementsAre(read("a.txt"), read("\xff.txt")));
  EXPECT_THAT(told_, IsEmpty());
}

}  // namespace
}  // namespace trireme
