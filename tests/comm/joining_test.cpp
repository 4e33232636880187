// Who may join a run, who is refused, and that nobody waits beyond the timeout: silent, foreign, late, wrong
// and lost peers. Ranks are threads of this process that connect as processes do.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <netinet/in.h>
#include <set>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/listening_socket.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/heartbeat.h"
#include "trireme/comm/process_post_board.h"
#include "trireme/comm/run_store.h"
#include "trireme/comm/world.h"

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace trireme::joining_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;

constexpr milliseconds kShort(400);
constexpr milliseconds kPatient(1500);  // where ranks must hear of each other on a busy machine
constexpr milliseconds kLong(20000);

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Ranks that were started by hand on one machine; rank 0 has the listening socket.
std::vector<RankIdentity> identities_of(int size, const ListeningSocket& socket) {
  std::vector<RankIdentity> identities;
  for (int rank = 0; rank < size; ++rank) {
    RankIdentity identity;
    identity.rank = rank;
    identity.size = size;
    identity.master_port = socket.port();
    if (rank == 0) identity.master_listen_fd = ::dup(socket.descriptor());
    identity.secret = {"0123456789abcdef", "TRIREME_SECRET", false};
    identities.push_back(identity);
  }
  return identities;
}

struct End {
  std::string kind, message;
};

// How each identity's rank ends that joins and then runs `body`.
std::vector<End> join_all(
    const std::vector<RankIdentity>& identities, milliseconds timeout,
    const std::function<void(World&)>& body = [](World&) {}) {
  std::vector<End> ends(identities.size());
  testing::on_threads(static_cast<int>(identities.size()), [&](int i) {
    try {
      const auto world = join_world(identities[i], {.timeout = timeout});
      body(*world);
      ends[i].kind = "joined";
    } catch (const Error& error) {
      ends[i] = {error.kind(), error.what()};
    } catch (const std::exception& error) {
      ends[i] = {"std::exception", error.what()};
    }
  });
  return ends;
}

// A socket that says `bytes` to whoever connects, after it has heard something, and then no more.
class Stranger {
 public:
  explicit Stranger(std::string bytes) : bytes_(std::move(bytes)), socket_("127.0.0.1", 0) {
    thread_ = std::thread([this] {
      while (!stop_) {
        const int peer = ::accept(socket_.descriptor(), nullptr, nullptr);
        if (peer < 0) return;
        peers_.push_back(peer);
        std::array<char, 256> heard{};
        if (::recv(peer, heard.data(), heard.size(), 0) <= 0) continue;
        [[maybe_unused]] const ssize_t sent = ::send(peer, bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
      }
    });
  }
  ~Stranger() {
    stop_ = true;
    ::shutdown(socket_.descriptor(), SHUT_RDWR);
    thread_.join();
    for (const int peer : peers_) ::close(peer);
  }
  RankIdentity identity() const {
    RankIdentity identity;
    identity.rank = 1;
    identity.size = 2;
    identity.master_port = socket_.port();
    return identity;
  }

 private:
  std::string bytes_;
  ListeningSocket socket_;
  std::atomic<bool> stop_{false};
  std::vector<int> peers_;
  std::thread thread_;
};

int connect_to_port(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

TEST(Joining, a_silent_rank_0_is_a_CommError_after_the_timeout_that_names_its_address) {
  const Stranger silent("");
  const std::string message =
      message_of<CommError>([&] { join_world(silent.identity(), {.timeout = kPatient}); });
  EXPECT_THAT(message,
              AllOf(HasSubstr("rank 0's address, 127.0.0.1:"), HasSubstr("failed on rank 1 after 1."),
                    HasSubstr("rank 0's process is stopped, or another program listens there"),
                    HasSubstr("Look at rank 0's output"), Not(HasSubstr("frame #"))));
}

TEST(Joining, where_another_program_answers_is_a_ConfigError_at_once) {
  const Stranger server("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  const double seconds = seconds_of([&] {
    EXPECT_THAT(message_of<ConfigError>([&] { join_world(server.identity(), {.timeout = kLong}); }),
                HasSubstr("another program listens at 127.0.0.1:"));
  });
  EXPECT_LT(seconds, 10);
}

TEST(Joining, where_another_program_says_little_is_a_ConfigError_at_once) {
  const Stranger server("TRIREXE");
  EXPECT_THAT(message_of<ConfigError>([&] { join_world(server.identity(), {.timeout = kLong}); }),
              HasSubstr("another program listens"));
}

TEST(Joining, drops_a_stranger_at_the_first_wrong_byte) {
  const ListeningSocket socket("127.0.0.1", 0);
  const RankIdentity identity = identities_of(2, socket)[0];
  const StoreServer server(identity.master_listen_fd, identity, kLong);
  const int stranger = connect_to_port(socket.port());
  const timeval limit{5, 0};
  ::setsockopt(stranger, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::send(stranger, "TX", 2, MSG_NOSIGNAL);
  char byte = 0;
  EXPECT_EQ(::recv(stranger, &byte, 1, 0), 0) << "the end of the connection";
  ::close(stranger);
}

TEST(Joining, where_nobody_listens_is_a_CommError_after_the_timeout) {
  RankIdentity identity = Stranger("").identity();  // gone by now
  EXPECT_THAT(message_of<CommError>([&] { join_world(identity, {.timeout = kShort}); }),
              AllOf(HasSubstr("Connection refused"), HasSubstr("check that it was started")));
}

TEST(Joining, an_unknown_host_and_a_port_in_use_are_ConfigErrors) {
  RankIdentity identity = Stranger("").identity();
  identity.master_address = "no-such-host.invalid";
  EXPECT_THAT(message_of<ConfigError>([&] { join_world(identity, {.timeout = kPatient}); }),
              HasSubstr("no-such-host.invalid"));
  const Stranger holder("");
  identity = holder.identity();
  identity.rank = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { join_world(identity, {.timeout = kShort}); }),
              AllOf(HasSubstr("cannot listen"), HasSubstr("MASTER_PORT")));
}

TEST(Joining, with_another_secret_is_refused_on_both_sides_by_name_and_the_secret_is_not_told) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identities = identities_of(2, socket);
  identities[1].secret = {"a wrong secret", "TRIREME_SECRET_FILE", false};
  const auto ends = join_all(identities, kShort);
  EXPECT_EQ(ends[0].kind, "CommError") << "a stranger's claim is no error of the configuration";
  EXPECT_EQ(ends[1].kind, "ConfigError");
  for (const End& end : ends) {
    EXPECT_THAT(end.message, AllOf(HasSubstr("rank 1 (host "), HasSubstr("TRIREME_SECRET_FILE"),
                                   Not(HasSubstr("wrong")), Not(HasSubstr("0123456789abcdef"))));
  }
}

TEST(Joining, with_another_number_of_ranks_is_named_on_all) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identities = identities_of(2, socket);
  identities[1].size = 3;
  double seconds = seconds_of([&] {
    for (const End& end : join_all(identities, kLong)) {
      EXPECT_EQ(end.kind, "ConfigError");
      EXPECT_THAT(end.message, HasSubstr("was started with WORLD_SIZE 3, rank 0 with 2"));
    }
  });
  EXPECT_LT(seconds, 15);
}

TEST(Joining, of_two_processes_as_one_rank_is_named_on_all) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identities = identities_of(3, socket);
  identities[2].rank = 1;
  for (const End& end : join_all(identities, kLong)) {
    EXPECT_EQ(end.kind, "ConfigError");
    EXPECT_THAT(end.message, HasSubstr("two processes were started with RANK 1"));
  }
}

TEST(Joining, names_who_has_not_come) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identities = identities_of(4, socket);
  identities.erase(identities.begin() + 2);
  for (const End& end : join_all(identities, kPatient)) {
    EXPECT_EQ(end.kind, "CommError");
    EXPECT_THAT(end.message, HasSubstr("rank 2 of 4 did not come within 1.5 s"));
  }
}

TEST(Joining, waits_for_the_same_attempt_of_the_run) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identities = identities_of(2, socket);
  identities[1].attempt = "1";
  const auto ends = join_all(identities, kShort);
  EXPECT_THAT(ends[1].message, HasSubstr("rank 0 is in attempt 0 of the run, and rank 1 in attempt 1"));
}

TEST(Joining, is_not_disturbed_by_strangers_that_came_first) {
  const ListeningSocket socket("127.0.0.1", 0);
  const auto identities = identities_of(3, socket);
  std::vector<int> strangers;
  const std::string garbage(5000, 'x');
  for (int i = 0; i < 500; ++i) {
    strangers.push_back(connect_to_port(socket.port()));
    if (i % 2 == 0) ::send(strangers.back(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  for (const End& end : join_all(identities, kLong)) EXPECT_EQ(end.kind, "joined") << end.message;
  for (const int stranger : strangers) ::close(stranger);
}

TEST(Joining, gives_rank_0_all_the_open_files_that_it_may_have) {
  rlimit before{}, after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit lower{std::min<rlim_t>(before.rlim_max - 1, 512), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  const ListeningSocket socket("127.0.0.1", 0);
  for (const End& end : join_all(identities_of(2, socket), kLong))
    EXPECT_EQ(end.kind, "joined") << end.message;
  ::getrlimit(RLIMIT_NOFILE, &after);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
}

// Rank 1 asks for what rank 0 told all of them before it left.
TEST(Joining, leaves_the_store_to_a_rank_that_comes_behind) {
  const ListeningSocket socket("127.0.0.1", 0);
  const auto identities = identities_of(2, socket);
  const std::jthread rank_0([&] {
    auto server = std::make_shared<StoreServer>(identities[0].master_listen_fd, identities[0], kLong);
    RunStore(identities[0], kLong, std::move(server)).set("told", {1});
  });
  RunStore store(identities[1], kLong);
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(store.get("told"), std::vector<uint8_t>{1});
}

TEST(Joining, a_rank_that_is_lost_ends_what_others_wait_for_in_the_store) {
  const ListeningSocket socket("127.0.0.1", 0);
  const auto identities = identities_of(3, socket);
  const double seconds = seconds_of([&] {
    const auto ends = join_all(identities, kLong, [](World& world) {
      if (world.rank() == 1) throw DataError("the file is broken");
      world.make_group("all", {{0, 1, 2}});
    });
    EXPECT_EQ(ends[1].kind, "DataError");
    for (const int rank : {0, 2}) {
      EXPECT_EQ(ends[static_cast<size_t>(rank)].kind, "CommError");
      EXPECT_THAT(ends[static_cast<size_t>(rank)].message,
                  AllOf(HasSubstr("connecting group 'all'"), HasSubstr("rank 1 (host ")));
    }
  });
  EXPECT_LT(seconds, 10);
}

// Rank 0 has heard of the loss, and closed the page, before rank 2 opens it.
TEST(Joining, a_rank_that_finds_the_shared_page_closed_tells_who_was_lost) {
  const ListeningSocket socket("127.0.0.1", 0);
  const auto identities = identities_of(3, socket);
  const std::jthread rank_0([&] {
    auto server = std::make_shared<StoreServer>(identities[0].master_listen_fd, identities[0], kLong);
    RunStore store(identities[0], kLong, std::move(server));
    const std::string closed_descriptor = "1048576";
    store.set("page", {closed_descriptor.begin(), closed_descriptor.end()});
    EXPECT_THROW(store.get("never set"), std::runtime_error);
  });
  const std::jthread rank_1([&] {
    try {
      const RunStore store(identities[1], kLong);
      throw DataError("the file is broken");
    } catch (const DataError&) {
    }
  });
  RunStore store(identities[2], kLong);
  const std::vector<std::shared_ptr<const PeerProcess>> peers(
      3, std::make_shared<PeerProcess>(MemoryProof().card()));
  EXPECT_THAT(message_of<std::runtime_error>([&] {
                const ProcessPostBoard board(store, 2, {0, 1, 2}, peers);
              }),
              HasSubstr("rank 1 (host "));
}

// What rank 0's heartbeat reads of rank 1, which ends by an error after its `last_act`.
std::string loss_told_to_rank_0(const std::function<void(LifeSigns& of_rank_1)>& last_act) {
  const ListeningSocket socket("127.0.0.1", 0);
  const auto identities = identities_of(2, socket);
  const auto signs_of = [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const std::string prefix = heartbeat_prefix(identities[static_cast<size_t>(rank)].attempt);
    return LifeSigns(c10::make_intrusive<c10d::PrefixStore>(prefix, store->clone()), rank, 2, 60);
  };
  const std::jthread rank_1([&] {
    try {
      const auto store = c10::make_intrusive<RunStore>(identities[1], kLong);
      LifeSigns signs = signs_of(1, store);
      last_act(signs);
      throw DataError("what ends the process");
    } catch (const DataError&) {
    }
  });
  const auto server = std::make_shared<StoreServer>(identities[0].master_listen_fd, identities[0], kLong);
  const auto store = c10::make_intrusive<RunStore>(identities[0], kLong, server);
  LifeSigns signs = signs_of(0, store);
  std::optional<std::string> lost;
  for (int look = 0; !lost && look < 1000; ++look) {
    std::this_thread::sleep_for(milliseconds(10));
    lost = signs.look(0);
  }
  return lost.value_or("nobody");
}

// One of c10d's threads ends the process.
TEST(Joining, a_rank_that_ends_without_a_word_is_told_to_the_heartbeats_of_the_others) {
  EXPECT_THAT(loss_told_to_rank_0([](LifeSigns&) {}),
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("has ended or cannot be reached")));
}

TEST(Joining, what_a_rank_says_of_its_own_error_is_kept) {
  const auto leave = [](LifeSigns& signs) { signs.leave(/*by_error=*/true, kLong, kLong); };
  EXPECT_THAT(loss_told_to_rank_0(leave), HasSubstr("rank 1 ended by an error"));
}

// Rank 0's side, which lets a rank in and is stopped then: it answers no more. With `until` it reads no more
// either.
void serve_and_stop(int listening, const RunSecret& secret, const std::future<void>* until = nullptr) {
  const int peer = ::accept(listening, nullptr, nullptr);
  std::string received;
  std::array<char, 4096> buffer{};
  const auto receive = [&] {
    const ssize_t got = ::recv(peer, buffer.data(), buffer.size(), 0);
    if (got > 0) received.append(buffer.data(), static_cast<size_t>(got));
    return got > 0;
  };
  while (received.size() < kGreeting_bytes && receive()) continue;
  Nonces nonces{*nonce_of(received.substr(0, kGreeting_bytes)), random_bytes()};
  received.erase(0, kGreeting_bytes);
  const std::string hello = greeting(nonces.of_store);
  ::send(peer, hello.data(), hello.size(), MSG_NOSIGNAL);
  while (!take_frame(received, kLargestHello_bytes) && receive()) continue;
  const std::string go = proven_frame({"0", ""}, secret.bytes, kRoleOfStore, nonces);
  ::send(peer, go.data(), go.size(), MSG_NOSIGNAL);
  if (until != nullptr)
    until->wait();
  else
    while (receive()) continue;  // the rank is gone
  ::close(peer);
}

TEST(RunStore, does_not_wait_for_a_stopped_rank_0_beyond_its_timeout) {
  const ListeningSocket socket("127.0.0.1", 0);
  auto identity = identities_of(2, socket)[1];
  std::thread rank_0([&] { serve_and_stop(socket.descriptor(), identity.secret); });
  {
    RunStore store(identity, kShort);
    const std::vector<std::function<void()>> calls{[&] { store.get("key"); }, [&] { store.check({"key"}); },
                                                   [&] { store.set("key", {1}); },
                                                   [&] { store.wait({"key"}, milliseconds(100)); }};
    for (const auto& call : calls) EXPECT_LT(seconds_of([&] { EXPECT_THROW(call(), DeadlinePassed); }), 2);
  }
  rank_0.join();
}

TEST(RunStore, sends_nothing_behind_a_request_that_was_not_sent_whole) {
  const ListeningSocket socket("127.0.0.1", 0);
  const int small_bytes = 1 << 16;  // accepted connections have it too
  ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_RCVBUF, &small_bytes, sizeof small_bytes);
  auto identity = identities_of(2, socket)[1];
  std::promise<void> over;
  const std::future<void> end = over.get_future();
  std::thread rank_0([&] { serve_and_stop(socket.descriptor(), identity.secret, &end); });
  {
    RunStore store(identity, kShort);
    const std::vector<uint8_t> more_than_the_system_buffers(size_t{24} << 20);
    EXPECT_THROW(store.set("key", more_than_the_system_buffers), DeadlinePassed);
    EXPECT_THAT(message_of<ConnectionLost>([&] { store.set("key", {1}); }), HasSubstr("not sent whole"));
  }
  over.set_value();
  rank_0.join();
}

c10::intrusive_ptr<RunStore> store_of_one_rank(milliseconds timeout) {
  const ListeningSocket socket("127.0.0.1", 0);
  const RankIdentity identity = identities_of(1, socket)[0];
  auto server = std::make_shared<StoreServer>(identity.master_listen_fd, identity, kLong);
  return c10::make_intrusive<RunStore>(identity, timeout, std::move(server));
}

TEST(RunStore, waits_for_no_other_thread_beyond_its_timeout) {
  const auto store = store_of_one_rank(kShort);
  std::thread waiting([&] { EXPECT_THROW(store->wait({"never"}, milliseconds(3000)), DeadlinePassed); });
  bool refused = false;
  while (!refused)  // until the other thread has the connection
    EXPECT_LT(seconds_of([&] {
                try {
                  store->check({"key"});
                } catch (const DeadlinePassed& error) {
                  EXPECT_THAT(error.what(), HasSubstr("another request"));
                  refused = true;
                }
              }),
              2);
  waiting.join();
}

TEST(RunStore, outlives_a_key_that_is_removed_while_a_rank_waits_for_it_and_another) {
  const auto store = store_of_one_rank(kLong);
  const auto other = store->clone();
  using Bytes = std::vector<uint8_t>;
  store->set("a", Bytes{1});
  store->setTimeout(kShort);
  EXPECT_THROW(store->wait({"a", "b"}), DeadlinePassed);  // the store still has this request
  EXPECT_TRUE(other->deleteKey("a"));
  other->set("b", Bytes{2});
  other->set("a", Bytes{3});
  store->setTimeout(kLong);
  store->wait({"a", "b"});
  EXPECT_EQ(store->get("a"), Bytes{3});
}

TEST(RunStore, answers_as_c10d_s_stores_do) {
  const auto store = store_of_one_rank(kShort);
  using Bytes = std::vector<uint8_t>;
  EXPECT_FALSE(store->check({"a"}));
  store->set("a", Bytes{0, 255, 10});
  EXPECT_EQ(store->get("a"), (Bytes{0, 255, 10}));
  EXPECT_TRUE(store->check({"a"}));
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", -5), -2);
  EXPECT_EQ(store->compareSet("c", Bytes{}, Bytes{7}), (Bytes{7}));
  EXPECT_EQ(store->compareSet("c", Bytes{8}, Bytes{9}), (Bytes{7}));
  EXPECT_EQ(store->compareSet("c", Bytes{7}, Bytes{9}), (Bytes{9}));
  EXPECT_EQ(store->compareSet("none", Bytes{7}, Bytes{9}), (Bytes{7}));
  store->set("x", Bytes{1});
  EXPECT_EQ(store->getNumKeys(), 4);
  EXPECT_TRUE(store->deleteKey("x"));
  EXPECT_FALSE(store->deleteKey("x"));
  EXPECT_THROW(store->wait({"x"}, milliseconds(50)), DeadlinePassed);
  EXPECT_EQ(store->get("a"), (Bytes{0, 255, 10})) << "after a wait whose time was over";
  const auto more = store->clone();
  std::thread late([&] { more->set("late", Bytes{4}); });
  EXPECT_EQ(store->get("late"), (Bytes{4}));
  late.join();
}

// Local addresses at which sockets of this process listen, as /proc tells them: hexadecimal, with the port.
std::set<std::string> listening_addresses() {
  std::set<std::string> inodes, addresses;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >>
          inode;
      if (state == "0A" && inodes.count(inode) != 0) addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST(Joining, on_one_machine_listens_at_the_loopback_interface_alone) {
  std::vector<RankIdentity> identities;
  {
    const ListeningSocket free_port("127.0.0.1", 0);
    identities = identities_of(2, free_port);
    ::close(identities[0].master_listen_fd);
    identities[0].master_listen_fd = -1;  // rank 0 opens it, as when it was started by hand
  }
  std::set<std::string> addresses;
  const auto ends = join_all(identities, kLong, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    barrier(*group);
    if (world.rank() == 0) addresses = listening_addresses();
    barrier(*group);
  });
  for (const End& end : ends) EXPECT_EQ(end.kind, "joined") << end.message;
  EXPECT_THAT(addresses, ::testing::ElementsAre("0100007F"));
}

class SecretInEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"TRIREME_SECRET", "TRIREME_SECRET_FILE"}) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  testing::TemporaryFolder folder_;
};

TEST_F(SecretInEnvironment, is_given_as_digits_or_as_a_file) {
  EXPECT_FALSE(given_secret().has_value());
  const std::filesystem::path file = folder_.path() / "secret";
  std::ofstream(file) << "00112233445566778899aabbccddee5A\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  ::setenv("TRIREME_SECRET_FILE", file.c_str(), 1);
  const RunSecret of_file = given_secret().value();
  EXPECT_FALSE(of_file.guessable);
  EXPECT_EQ(of_file.bytes.size(), 16U);
  EXPECT_EQ(of_file.bytes.back(), 'Z');
  ::setenv("TRIREME_SECRET", "00112233445566778899AABBCCDDEE5a", 1);
  EXPECT_EQ(given_secret().value().bytes, of_file.bytes) << "launcher and hand give the same";
  ::setenv("TRIREME_SECRET", "secret that is not hexadecimal", 1);
  EXPECT_THAT(message_of<ConfigError>([] { given_secret(); }), Not(HasSubstr("secret that")));
}

TEST_F(SecretInEnvironment, that_can_be_guessed_is_warned_of_where_others_reach_rank_0) {
  RankIdentity identity{.rank = 0, .size = 2};
  EXPECT_FALSE(open_door_warning(identity).has_value()) << "loopback";
  identity.master_address = "node7";
  EXPECT_THAT(open_door_warning(identity).value_or(""), AllOf(HasSubstr("no secret"), HasSubstr("node7")));
  identity.secret.guessable = false;
  EXPECT_FALSE(open_door_warning(identity).has_value());
}

TEST(Activity, of_a_rank_tells_the_collective_that_failed_and_where) {
  const ListeningSocket socket("127.0.0.1", 0);
  const auto identities = identities_of(2, socket);
  const auto ends = join_all(identities, kShort, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    world.activity().set_step(7);
    world.activity().set_layer(3, PassDirection::backward);
    if (world.rank() == 1) std::this_thread::sleep_for(2 * kShort);
    barrier(*group);
  });
  EXPECT_THAT(ends[0].message, HasSubstr("barrier of group 'all' failed on rank 0 after 0."));
  EXPECT_THAT(ends[0].message, HasSubstr("in step 7, layer 3 backward: "));
}

}  // namespace
}  // namespace trireme::joining_test
