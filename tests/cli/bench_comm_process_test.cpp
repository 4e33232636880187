// trireme bench comm as a user runs it: alone, and one rank of two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::output_of;

const std::vector<std::string> kBenchComm{"bench",     "comm",       "--heads",   "6",        "--kv_heads",
                                          "3",         "--head_dim", "8",         "--tokens", "33",
                                          "--repeats", "1",          "--threads", "1"};

TEST(BenchCommProgram, launched_ranks_count_their_own_number_and_know_the_others_by_formula) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> words{"launch", "--nproc_per_node", "2", "--"};
  words.insert(words.end(), kBenchComm.begin(), kBenchComm.end());
  EXPECT_THAT(output_of(words, folder / "log"),
              AllOf(HasSubstr("2 ranks"), HasSubstr("ulysses 2"), HasSubstr("megatron 2"),
                    HasSubstr("formula only"), HasSubstr("count\n")));
}

TEST(BenchCommProgram, alone_says_that_nothing_travels) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(output_of(kBenchComm, folder / "log"), HasSubstr("one rank: nothing travels"));
}

}  // namespace
}  // namespace trireme
