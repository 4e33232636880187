// trireme bench step --simulate_ranks as a user runs it: one process in place of eight, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchSimulatedProgram, one_process_takes_the_steps_of_a_rank_of_eight) {
  const testing::TemporaryFolder folder;
  const auto model = folder.path() / "model";
  testing::output_of({"init", "--preset", "tiny", "--out", model.string()}, folder / "init");
  const auto run = [&](const std::vector<std::string>& more, int code = 0,
                       const testing::ProgramOptions& how = {}) {
    std::vector<std::string> words{
        "bench", "step",     "--model", model.string(), "--seq", "64",        "--steps",
        "2",     "--warmup", "1",       "--device",     "cpu",   "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return testing::output_of(words, folder / "log", code, how);
  };

  EXPECT_THAT(run({"--simulate_ranks", "8", "--sp", "4", "--zero", "3"}),
              AllOf(HasSubstr("rank 0 of 8 ranks"), HasSubstr("data parallel 2"), HasSubstr("ZeRO 3"),
                    HasSubstr("network       not known"), HasSubstr("measured, of rank 0"),
                    HasSubstr("gradients"), Not(HasSubstr("losses"))));

  const Json json = parse_json(run({"--simulate_ranks", "2", "--ulysses", "2", "--json"}), "the program");
  EXPECT_EQ(json.at("simulated_ranks"), 2);
  EXPECT_GT(json.at("measured").at("sent_bytes").get<int64_t>(), 0);
  EXPECT_FALSE(json.contains("losses"));

  EXPECT_THAT(run({"--simulate_ranks", "6", "--ulysses", "4"}, 78),
              AllOf(HasSubstr("--ulysses: 4 ranks are to share a sample, and the run has 6 ranks"),
                    HasSubstr("give --simulate_ranks 4")));
  EXPECT_THAT(run({"--simulate_ranks", "8", "--predict", "h100-80gb"}, 78), HasSubstr("is of a GPU"));
  EXPECT_THAT(run({"--simulate_ranks", "8"}, 78,
                  {.environment = {{"RANK", "0"},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", "0"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", "29999"}}}),
              HasSubstr("takes one process"));
}

}  // namespace
}  // namespace trireme
