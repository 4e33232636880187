// Who may use the file of a secret.
#include "trireme/base/secret_digits.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uid_t kUser = 1000;
constexpr gid_t kGroup = 2000;

std::string fault_of(mode_t mode, uid_t owner, gid_t group) {
  struct stat status = {};
  status.st_mode = mode | S_IFREG;
  status.st_uid = owner;
  status.st_gid = group;
  return fault_of_secret_file(status, kUser, {kGroup});
}

TEST(SecretFile, is_the_user_s_alone_or_root_s_for_a_group_of_the_user) {
  EXPECT_EQ(fault_of(0600, kUser, kGroup), "");
  EXPECT_EQ(fault_of(0400, kUser, kGroup), "");
  EXPECT_EQ(fault_of(0440, 0, kGroup), "") << "as Kubernetes mounts it with fsGroup";
  EXPECT_THAT(fault_of(0440, 0, kGroup + 1), HasSubstr("may be read by others"));
  EXPECT_THAT(fault_of(0640, kUser, kGroup), HasSubstr("may be read by others"));
  EXPECT_THAT(fault_of(0460, 0, kGroup), HasSubstr("may be used by others"));
  for (const mode_t others : {0604, 0602, 0601})
    EXPECT_THAT(fault_of(others, kUser, kGroup), HasSubstr("may be used by others"));
  EXPECT_THAT(fault_of(0600, kUser + 1, kGroup), HasSubstr("belongs to the user 1001"));
}

TEST(SecretFile, that_cannot_be_read_or_is_none_says_so) {
  const testing::TemporaryFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    return testing::message_of<ConfigError>([&] { read_secret_file(path); });
  };
  EXPECT_THAT(message(folder.path() / "none"), HasSubstr("No such file"));
  EXPECT_THAT(message(folder.path()), HasSubstr("is no file"));
  const auto file = folder.path() / "secret";
  std::ofstream(file) << "00112233445566778899aabbccddee5a\n";
  std::filesystem::permissions(file, std::filesystem::perms(0604));
  EXPECT_THAT(message(file), AllOf(HasSubstr("chmod 600"), Not(HasSubstr("00112233"))));
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  EXPECT_EQ(read_secret_file(file), "00112233445566778899aabbccddee5a");
}

}  // namespace
}  // namespace trireme
