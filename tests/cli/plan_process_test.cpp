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
using testing::Words;

class PlanProcess : public ::testing::Test {
 protected:
  PlanProcess() {
    HardwareProfile profile = testing::round_profile(/*is_gpu=*/false);
    profile.threads = 1;
    std::ofstream(run_.folder() / "cpu.json") << to_json(profile);
  }
  std::string ran(const Words& words) const { return testing::output_of(words, run_.folder() / "log"); }
  // Plans, and then what its files start.
  std::string dry_run(int ranks, const Words& more) const {
    const fs::path folder = run_.folder() / "plan";
    ran(testing::joined(
        {{"plan", "--model", run_.model().string(), "--gpu", (run_.folder() / "cpu.json").string()},
         {"--gpus", std::to_string(ranks), "--output", folder.string()},
         more}));
    return ran({"launch", "--nproc_per_node", std::to_string(ranks), "--", "train", "--config",
                (folder / "run.yaml").string(), "--train_file", run_.tokens().string(), "--dry_run"});
  }

  const testing::TinyRun run_;
};

TEST_F(PlanProcess, what_it_writes_runs_on_one_two_and_four_ranks) {
  for (const int ranks : {1, 2, 4})
    EXPECT_THAT(dry_run(ranks, {"--max_seq_length", "64", "--samples_per_step", "4"}),
                HasSubstr("memory fits"))
        << ranks;
}

TEST_F(PlanProcess, stages_that_it_writes_are_one_run) {
  EXPECT_THAT(dry_run(2, {"--stages", "16,...,64", "--sp", "2", "--tokens", "3k"}),
              ::testing::AllOf(HasSubstr("memory fits"), HasSubstr("x 64 tokens")));
}

}  // namespace
}  // namespace trireme::plan_process_test
