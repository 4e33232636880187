// Each plan that is written starts as it is, on the ranks that it is for.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"
#include "tests/plan/planned_step.h"

namespace fs = std::filesystem;

namespace trireme::plan_process_test {
namespace {

using ::testing::HasSubstr;
using testing::Program;
using testing::Words;

TEST(PlanProcess, what_it_writes_runs_on_one_two_and_four_ranks) {
  const testing::TinyRun run;
  HardwareProfile profile = testing::round_profile(/*is_gpu=*/false);
  profile.threads = 1;
  std::ofstream(run.folder() / "cpu.json") << to_json(profile);
  const auto ran = [&](const Words& words) {
    Program program(words, run.folder() / "log");
    EXPECT_EQ(program.wait(), 0) << program.output();
    return program.output();
  };
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    const fs::path folder = run.folder() / std::to_string(ranks);
    ran({"plan", "--model", run.model().string(), "--gpu", (run.folder() / "cpu.json").string(), "--gpus",
         std::to_string(ranks), "--max_seq_length", "64", "--samples_per_step", "4", "--output",
         folder.string()});
    const Words train{
        "train",    "--config", (folder / "run.yaml").string(), "--train_file", run.tokens().string(),
        "--dry_run"};
    EXPECT_THAT(ran(testing::joined({{"launch", "--nproc_per_node", std::to_string(ranks), "--"}, train})),
                HasSubstr("memory fits"));
  }
}

}  // namespace
}  // namespace trireme::plan_process_test
