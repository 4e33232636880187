#include "trireme/base/folder_entries.h"

#include <cstdlib>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/environment.h"
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

TEST(IsFile, is_true_of_a_regular_file_also_by_a_link_and_of_nothing_else) {
  const TemporaryFolder folder;
  fs::create_symlink(folder.write("in/file", "x"), folder / "link");
  fs::create_symlink("nowhere", folder / "dangling");
  EXPECT_TRUE(is_file(folder / "in/file"));
  EXPECT_TRUE(is_file(folder / "link"));
  for (const char* other : {"in", "none", "dangling", "in/file/below"}) EXPECT_FALSE(is_file(folder / other));
}

TEST(IsFile, where_the_system_cannot_tell_is_a_data_error_that_names_the_path) {
  const TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THAT(message_of<DataError>([&] { is_file(folder / "loop"); }),
              AllOf(HasSubstr((folder / "loop").string()), HasSubstr("symbolic links")));
  const std::string message = message_of<DataError>([&] { is_file(std::string(100'000, 'n')); });
  EXPECT_THAT(message, HasSubstr("name too long"));
  EXPECT_LT(message.size(), 500U);
}

TEST(TemporaryFolder, that_tmpdir_names_and_that_is_not_there_is_a_config_error) {
  const TemporaryFolder folder;
  const std::optional<std::string> before = environment("TMPDIR");
  const fs::path none = folder / "none";
  ::setenv("TMPDIR", none.c_str(), 1);
  const std::string message = message_of<ConfigError>([] { temporary_folder(); });
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  EXPECT_EQ(temporary_folder(), folder.path());
  if (before)
    ::setenv("TMPDIR", before->c_str(), 1);
  else
    ::unsetenv("TMPDIR");
  EXPECT_THAT(message, AllOf(HasSubstr(none.string()), HasSubstr("TMPDIR")));
}

}  // namespace
}  // namespace trireme
