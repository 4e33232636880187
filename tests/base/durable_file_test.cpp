#include "trireme/base/durable_file.h"

#include <cerrno>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/safetensors_writer.h"

#include "tests/support/error_message.h"
#include "tests/support/failing_file.h"
#include "tests/support/file_bytes.h"
#include "tests/support/file_operations.h"
#include "tests/support/small_files.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ReplacedFile, is_synced_beside_before_it_gets_its_name_and_then_the_folder_is) {
  const testing::TemporaryFolder folder;
  const testing::FileOperations operations;
  replace_file(folder.path() / "notes.json", "new");
  EXPECT_THAT(operations.in(folder.path().string()),
              ElementsAre("write notes.json.partial", "sync notes.json.partial",
                          "rename notes.json.partial notes.json", "sync ."));
}

TEST(FileError, of_a_full_disk_says_what_to_do) {
  for (const int full : {ENOSPC, EDQUOT})
    EXPECT_THAT(
        testing::message_of<DataError>([&] { throw_file_error("a.bin: cannot write", full, "; later"); }),
        HasSubstr("; free some space, or choose another folder; later"));
}

TEST(ReplacedFile, stays_as_it_was_where_the_new_text_does_not_fit) {
  const testing::TemporaryFolder folder;
  replace_file(folder.path() / "notes.json", "old");
  const std::string message = testing::message_of<DataError>([&] {
    const testing::SmallFiles limit(1000);
    replace_file(folder.path() / "notes.json", std::string(2000, 'x'));
  });
  EXPECT_THAT(message, AllOf(HasSubstr("cannot write 2000 bytes"),
                             HasSubstr("raise the limit of a file's size (ulimit -f)")));
  EXPECT_EQ(testing::bytes_of(folder.path() / "notes.json"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "notes.json.partial"));
}

TEST(CopiedFile, is_whole_or_an_error) {
  const testing::TemporaryFolder folder;
  const std::string text(100'000, 'x');
  folder.write("tokenizer.json", text);
  copy_durable(folder / "tokenizer.json", folder / "copy.json");
  EXPECT_EQ(testing::bytes_of(folder / "copy.json"), text);
  const testing::FailingFile failing(testing::FileCall::read, "tokenizer.json", EIO);
  EXPECT_THAT(
      testing::message_of<Error>([&] { copy_durable(folder / "tokenizer.json", folder / "half.json"); }),
      HasSubstr("tokenizer.json"));
  EXPECT_TRUE(failing.reached());
  EXPECT_FALSE(std::filesystem::exists(folder / "half.json"));
}

TEST(SafetensorsFile, is_synced_before_it_gets_its_name_and_then_the_folder_is) {
  const testing::TemporaryFolder folder;
  const testing::FileOperations operations;
  SafetensorsWriter writer(folder.path() / "w.safetensors", {{"w", "F32", {1}}});
  const float value = 1;
  writer.write("w", &value, sizeof(value));
  writer.finish();
  EXPECT_THAT(operations.in(folder.path().string()),
              ElementsAre("write w.safetensors.partial", "sync w.safetensors.partial",
                          "rename w.safetensors.partial w.safetensors", "sync ."));
}

}  // namespace
}  // namespace trireme
