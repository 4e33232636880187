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
using testing::Program;

TEST(BenchSimulatedProgram, one_process_takes_the_steps_of_a_rank_of_eight) {
  const testing::TemporaryFolder folder;
  const auto model = folder.path() / "model";
  Program init({"init", "--preset", "tiny", "--out", model.string()}, folder.path() / "init");
  ASSERT_EQ(init.wait(), 0) << init.output();
  const auto run = [&](std::vector<std::string> more, const testing::ProgramOptions& how = {}) {
    std::vector<std::string> words{
        "bench", "step",     "--model", model.string(), "--seq", "64",        "--steps",
        "2",     "--warmup", "1",       "--device",     "cpu",   "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    Program program(words, folder.path() / "log", how);
    const int code = program.wait();
    return std::pair{code, program.output()};
  };

  const auto [code, text] = run({"--simulate_ranks", "8", "--sp", "4", "--zero", "3"});
  ASSERT_EQ(code, 0) << text;
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0 of 8 ranks"), HasSubstr("data parallel 2"), HasSubstr("ZeRO 3"),
                          HasSubstr("network       not known"), HasSubstr("measured, of rank 0"),
                          HasSubstr("gradients"), Not(HasSubstr("losses"))));

  const auto [json_code, line] = run({"--simulate_ranks", "2", "--ulysses", "2", "--json"});
  ASSERT_EQ(json_code, 0) << line;
  const Json json = parse_json(line, "the program");
  EXPECT_EQ(json.at("simulated_ranks"), 2);
  EXPECT_GT(json.at("measured").at("sent_bytes").get<int64_t>(), 0);
  EXPECT_FALSE(json.contains("losses"));

  const auto [uneven, degrees] = run({"--simulate_ranks", "6", "--ulysses", "4"});
  EXPECT_EQ(uneven, 78);
  EXPECT_THAT(degrees, HasSubstr("does not divide the number of ranks, 6"));
  const auto [gpu, profile] = run({"--simulate_ranks", "8", "--predict", "h100-80gb"});
  EXPECT_EQ(gpu, 78);
  EXPECT_THAT(profile, HasSubstr("is of a GPU"));
  const auto [launched, several] =
      run({"--simulate_ranks", "8"}, {.environment = {{"RANK", "0"},
                                                      {"WORLD_SIZE", "2"},
                                                      {"LOCAL_RANK", "0"},
                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                      {"MASTER_PORT", "29999"}}});
  EXPECT_EQ(launched, 78);
  EXPECT_THAT(several, HasSubstr("takes one process"));
}

}  // namespace
}  // namespace trireme
