// A folder that a process makes for itself: nobody can foretell its name, it goes with its object, and what a
// killed process left goes with the next one.
#include "trireme/cli/owned_folder.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme::owned_folder_test {
namespace {

class OwnedFolders : public ::testing::Test {
 protected:
  fs::path prefix() const { return folder_ / "trireme-scratch-"; }
  testing::TemporaryFolder folder_;
};

TEST_F(OwnedFolders, have_names_of_chance_and_rights_of_their_own) {
  const OwnedFolder a(prefix(), 0700), b(prefix(), 0700);
  EXPECT_NE(a.path(), b.path());
  EXPECT_TRUE(a.path().string().starts_with(prefix().string()));
  EXPECT_EQ(a.path(), OwnedFolder::name_of(prefix(), a.number()));
  EXPECT_EQ(a.path().string().size(), prefix().string().size() + 16);
  EXPECT_EQ(a.path().string().find(std::to_string(::getpid())), std::string::npos);
  EXPECT_EQ(fs::status(a.path()).permissions(), fs::perms::owner_all);
}

TEST_F(OwnedFolders, go_with_their_object_and_all_that_is_in_them) {
  fs::path path;
  {
    const OwnedFolder folder(prefix(), 0700);
    path = folder.path();
    fs::create_directories(path / "deep" / "er");
  }
  EXPECT_FALSE(fs::exists(path));
}

// A process that is killed lets go of its lock; nothing else tells its folder from one in use.
TEST_F(OwnedFolders, of_a_process_that_was_killed_go_with_the_next_one_and_others_stay) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto* left = new OwnedFolder(prefix(), 0700);
    ::close(::open((left->path() / "eval.bin").c_str(), O_CREAT | O_WRONLY, 0600));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
  fs::create_directories(folder_ / "trireme-scratch-of-mine");
  fs::create_directories(folder_ / "trireme-scratch-0123456789abcdeg");
  const OwnedFolder in_use(prefix(), 0700);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 3) << "the killed one's is gone";
  const OwnedFolder another(prefix(), 0700);
  EXPECT_TRUE(fs::exists(in_use.path()));
  EXPECT_TRUE(fs::exists(folder_ / "trireme-scratch-of-mine"));
  EXPECT_TRUE(fs::exists(folder_ / "trireme-scratch-0123456789abcdeg"));
}

TEST_F(OwnedFolders, where_none_can_be_made_are_a_data_error_that_names_the_folder) {
  EXPECT_THAT(
      testing::message_of<DataError>([&] { OwnedFolder(folder_ / "missing" / "trireme-scratch-", 0700); }),
      ::testing::HasSubstr("missing/trireme-scratch-"));
}

}  // namespace
}  // namespace trireme::owned_folder_test
