#include "trireme/base/input_file.h"

#include <string>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

std::string refusal(const fs::path& file) {
  return message_of<DataError>([&] { const InputFile in(file); });
}

TEST(InputFile, gives_its_bytes) {
  const TemporaryFolder folder;
  const InputFile in(folder.write("a", "hello"));
  char two[3] = {};
  in.read(3, two, 2);
  EXPECT_STREQ(two, "lo");
  EXPECT_EQ(in.read_some(4, two, 2), 1);
  EXPECT_EQ(in.whole(5), "hello");
  EXPECT_THAT(message_of<DataError>([&] { in.whole(4); }), HasSubstr("at most 4"));
}

// Each would hang, end as a bug, or open another file.
TEST(InputFile, is_never_a_pipe_a_folder_a_loop_of_links_or_a_name_that_no_file_can_have) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink(folder / "loop", folder / "loop");
  const fs::path real = folder.write("real", "x");
  EXPECT_THAT(refusal(folder / "pipe"), AllOf(HasSubstr("/pipe"), HasSubstr("pipe, not a regular file")));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("it is a folder"));
  EXPECT_THAT(refusal(folder / "loop"), AllOf(HasSubstr("/loop"), HasSubstr("symbolic links")));
  EXPECT_THAT(refusal(folder / std::string(300, 'n')), AllOf(HasSubstr("nnn"), HasSubstr("too long")));
  EXPECT_THAT(refusal(folder / "absent"), AllOf(HasSubstr("/absent"), HasSubstr("No such file")));
  EXPECT_THAT(refusal(fs::path(real.string() + std::string("\0.safetensors", 13))),
              AllOf(HasSubstr("real\\x00.safetensors"), HasSubstr("zero byte")));
}

TEST(InputFile, that_shrinks_is_named) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("tokens.bin", std::string(100, 'x'));
  const InputFile in(file);
  fs::resize_file(file, 40);
  std::string bytes(100, '\0');
  EXPECT_THAT(message_of<DataError>([&] { in.read(0, bytes.data(), 100); }),
              AllOf(HasSubstr("tokens.bin"), HasSubstr("byte 40"), HasSubstr("100 bytes")));
}

}  // namespace
}  // namespace trireme
