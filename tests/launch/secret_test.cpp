// The run's secret, and where the launcher listens.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/listening_socket.h"
#include "trireme/base/resolved_address.h"
#include "trireme/launch/launch_secret.h"

#include "tests/launch/launch_outcome.h"
#include "tests/launch/shell_ranks.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::launch_and_wait;
using testing::LaunchOutcome;
using testing::message_of;
using testing::shell;
using testing::TemporaryFolder;

class Secret : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("TRIREME_SECRET");
    ::unsetenv("TRIREME_SECRET_FILE");
  }
  void TearDown() override { SetUp(); }

  LaunchOptions with_file(const std::string& text, std::filesystem::perms perms) const {
    std::ofstream(folder_ / "secret") << text;
    std::filesystem::permissions(folder_ / "secret", perms);
    LaunchOptions options = shell(1, "echo $TRIREME_SECRET ${TRIREME_SECRET_FILE:-none}");
    options.secret_file = (folder_ / "secret").string();
    return options;
  }

  static constexpr auto kOwner = std::filesystem::perms::owner_read;
  const std::string digits_ = "00112233445566778899aabbccddeeff";
  TemporaryFolder folder_;
};

TEST_F(Secret, is_a_new_one_of_256_bits_for_each_launch_on_one_machine) {
  const std::string first = launch_secret({}), second = launch_secret({});
  EXPECT_EQ(first.size(), 64U);
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(first, second);
}

TEST_F(Secret, reaches_the_ranks_by_their_environment_alone) {
  const LaunchOutcome outcome = launch_and_wait(with_file(digits_ + "\n", kOwner));
  EXPECT_EQ(outcome.out, "[rank 0] " + digits_ + " none\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Secret, that_is_given_in_the_environment_counts) {
  ::setenv("TRIREME_SECRET", digits_.c_str(), 1);
  EXPECT_EQ(launch_secret({}), digits_);
  ::setenv("TRIREME_SECRET", "secret", 1);
  EXPECT_THAT(message_of<ConfigError>([] { launch_secret({}); }),
              HasSubstr("TRIREME_SECRET holds 6 characters"));
}

TEST_F(Secret, in_a_file_that_others_may_read_is_refused) {
  const auto options = with_file(digits_, kOwner | std::filesystem::perms::others_read);
  EXPECT_THAT(message_of<ConfigError>([&] { launch_secret(options); }), HasSubstr("chmod 600"));
}

TEST_F(Secret, that_is_none_is_refused_and_never_quoted) {
  for (const std::string text : {"", "abc", "this is not hexadecimal and is long enough"}) {
    const auto options = with_file(text, kOwner);
    const std::string message = message_of<ConfigError>([&] { launch_secret(options); });
    EXPECT_THAT(message, HasSubstr(options.secret_file));
    EXPECT_TRUE(text.empty() || message.find(text) == std::string::npos) << message;
    std::filesystem::remove(options.secret_file);
  }
  LaunchOptions options;
  options.secret_file = (folder_ / "nowhere").string();
  EXPECT_THAT(message_of<ConfigError>([&] { launch_secret(options); }), HasSubstr("No such file"));
}

TEST_F(Secret, of_several_machines_is_asked_for_with_the_line_that_makes_one) {
  LaunchOptions options;
  options.nnodes = 2;
  EXPECT_THAT(message_of<ConfigError>([&] { launch_secret(options); }),
              HasSubstr("openssl rand -hex 32 > run.secret"));
}

// The address on which it listens.
std::string interface_of(const ListeningSocket& socket) {
  ResolvedAddress address;
  address.size = sizeof address.storage;
  ::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address.digits();
}

// "connected", or the system's reason.
std::string connect_to(const char* address, int port) {
  const ResolvedAddress peer = resolve(address, port).front();
  const FileDescriptor client(::socket(peer.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(client.get(), peer.generic(), peer.size) == 0 ? "connected" : std::strerror(errno);
}

bool has_ipv6() {
  const ResolvedAddress loopback = resolve("::1", 0).front();
  const FileDescriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket.is_open() && ::bind(socket.get(), loopback.generic(), loopback.size) == 0;
}

TEST(ListeningSocket, listens_on_the_interface_of_its_address_alone) {
  EXPECT_EQ(interface_of(ListeningSocket("127.0.0.1", 0)), "127.0.0.1");
  EXPECT_EQ(interface_of(ListeningSocket("localhost", 0)), "127.0.0.1");
  EXPECT_EQ(interface_of(ListeningSocket("127.0.0.2", 0)), "127.0.0.2");
}

TEST(ListeningSocket, refuses_another_machines_address_or_listens_everywhere_as_told) {
  // 192.0.2.0/24 is for documents: no machine has it.
  EXPECT_THAT(message_of<ConfigError>([] { ListeningSocket("192.0.2.1", 0); }),
              HasSubstr("no address of this machine"));
  const ListeningSocket everywhere("192.0.2.1", 0, ForeignAddress::all_interfaces);
  EXPECT_EQ(interface_of(everywhere), has_ipv6() ? "::" : "0.0.0.0");
  EXPECT_EQ(connect_to("127.0.0.1", everywhere.port()), "connected");
  if (has_ipv6()) {
    EXPECT_EQ(connect_to("::1", everywhere.port()), "connected");
  }
}

TEST(ResolvedAddress, of_a_peer_by_ipv4_is_told_so_whatever_it_came_to) {
  EXPECT_EQ(resolve("::ffff:10.0.0.7", 0).front().digits(), "10.0.0.7");
  EXPECT_EQ(resolve("10.0.0.7", 0).front().digits(), "10.0.0.7");
  EXPECT_EQ(resolve("fd00::7", 0).front().digits(), "fd00::7");
}

TEST(ListeningSocket, says_of_a_port_in_use_that_another_is_to_be_chosen) {
  const ListeningSocket first("127.0.0.1", 0);
  EXPECT_THAT(message_of<ConfigError>([&] { ListeningSocket("127.0.0.1", first.port()); }),
              HasSubstr("choose another --master_port"));
}

}  // namespace
}  // namespace trireme
