// Real ranks under the launcher: processes that meet through the inherited socket, and exchange through each
// other's memory or over Gloo.
// This program is its own rank: `main` takes the part named after --as_rank.
#include <chrono>
#include <iostream>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/mesh.h"
#include "trireme/launch/launch.h"

#include "tests/launch/launch_outcome.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::launch_and_wait;
using testing::LaunchOutcome;

// What a rank does; returns its exit code.
int run_as_rank(const std::string& part) {
  const RankIdentity identity = rank_identity_from_environment();
  if (part == "never_joins" && identity.rank == 0) {
    std::this_thread::sleep_for(seconds(200));  // the launcher ends it when rank 1 has given up
    return 0;
  }
  const auto world = join_world(
      identity, {.timeout = seconds(part == "never_joins" ? 1 : 300),
                 .backend = part == "over_gloo" ? ExchangeBackend::gloo : ExchangeBackend::automatic});
  const Mesh mesh = make_mesh(*world, {.ulysses = world->size()});
  at::Tensor sum = at::full({100000}, world->rank() + 1, at::kFloat);
  all_reduce_sum(*mesh.all, sum);
  std::cout << "sum " << sum[99999].item<float>() << " socket " << (identity.master_listen_fd >= 0) << " by "
            << mesh.all->backend().getBackendName() << "\n"
            << std::flush;
  if (part == "killed" && world->rank() == 1) ::raise(SIGKILL);
  if (part == "broken" && world->rank() == 1) throw DataError("a broken file");
  if (part == "killed" || part == "broken") all_reduce_sum(*mesh.ulysses, sum);
  return 0;
}

LaunchOutcome launch_ranks(int nproc, const std::string& part) {
  LaunchOptions options;
  options.nproc = nproc;
  options.command = {"--as_rank", part};
  return launch_and_wait(options);
}

TEST(LaunchedRanks, meet_through_the_socket_that_rank_0_inherits) {
  for (const auto& [part, backend] : {std::pair{"sum", "memory"}, std::pair{"over_gloo", "gloo"}}) {
    const LaunchOutcome outcome = launch_ranks(3, part);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(cat("[rank 0] sum 6 socket 1 by ", backend, "\n")));
    EXPECT_THAT(outcome.out, HasSubstr(cat("[rank 1] sum 6 socket 0 by ", backend, "\n")));
    EXPECT_THAT(outcome.out, HasSubstr(cat("[rank 2] sum 6 socket 0 by ", backend, "\n")));
  }
}

TEST(LaunchedRanks, one_killed_ends_the_run_before_the_timeout_and_survivors_say_what_they_waited_for) {
  const LaunchOutcome outcome = launch_ranks(3, "killed");
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_LT(outcome.seconds, testing::kNotEnded_seconds);
  EXPECT_THAT(outcome.err, HasSubstr("trireme launch: rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("was killed by signal 9"));
  for (const int survivor : {0, 2}) {
    EXPECT_THAT(outcome.err,
                HasSubstr(cat("[rank ", survivor, "] CommError: all_reduce_sum of group 'ulysses'")));
  }
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr(") has ended. Ranks taking part: 0, 1, 2"));
}

TEST(LaunchedRanks, the_one_with_an_error_is_blamed_and_its_message_shown) {
  const LaunchOutcome outcome = launch_ranks(2, "broken");
  EXPECT_EQ(outcome.code, 65);
  EXPECT_THAT(outcome.err, HasSubstr("trireme launch: rank 1 (process "));
  EXPECT_THAT(outcome.err, HasSubstr("    DataError: a broken file\n"));
}

TEST(LaunchedRanks, a_rank_whose_peer_never_joins_gives_up_with_CommError) {
  const LaunchOutcome outcome = launch_ranks(2, "never_joins");
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("CommError: meeting the other ranks at rank 0's address, 127.0.0.1:"));
  EXPECT_THAT(outcome.err, HasSubstr("failed on rank 1 after "));
}

}  // namespace

int main_as_rank(const std::string& part) {
  try {
    return run_as_rank(part);
  } catch (const Error& error) {
    std::cerr << error.kind() << ": " << error.what() << "\n";
    return error.exit_code();
  }
}

}  // namespace trireme

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--as_rank") return trireme::main_as_rank(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
