// What the planner proposes against an out-of-memory error is what train and its reader of DeepSpeed's
// configuration take, and both mean the same; train takes what runners-up differ by, too.
#include <gtest/gtest.h>

#include "trireme/cli/deepspeed_config.h"
#include "trireme/cli/train.h"
#include "trireme/plan/memory_change_sets.h"
#include "trireme/plan/plan.h"

#include "tests/plan/llama_3_8b.h"
#include "tests/plan/small_request.h"
#include "tests/support/other_value.h"
#include "tests/support/words_of.h"

namespace trireme::memory_change_flags_test {
namespace {

// "--zero 3 --x y" -> zero 3, x y
std::map<std::string, std::string> options_of(const std::string& flags) {
  std::map<std::string, std::string> options;
  std::string name;
  for (const std::string& word : testing::words_of(flags)) {
    if (word.starts_with("--"))
      options[name = word.substr(2)];
    else
      options[name] = word;
  }
  return options;
}

void expect_train_takes(const std::string& line) {
  SCOPED_TRACE(line);
  EXPECT_NO_THROW(Declared<TrainFlags>("train").parser.parse(
      testing::words_of("--model_name_or_path m --output_dir o --train_file f " + line)));
}

// Every kind of change: a batch of 4, two data-parallel ranks, nothing offloaded, nothing computed again.
PlannedStep wide_step() {
  PlannedStep step = testing::llama_step(65536, 4, 8, 0, Recompute::none);
  step.inputs = with_batch(step.inputs, 4, 65536);
  return step;
}

TEST(MemoryChangeFlags, train_takes_each) {
  int changes = 0;
  for (const auto& choices : possible_changes(wide_step(), testing::gpu_80gb(), {}))
    for (const MemoryChange& change : choices) {
      expect_train_takes(change.flags);
      ++changes;
    }
  EXPECT_GE(changes, 20);
}

TEST(MemoryChangeFlags, train_takes_those_of_runners_up) {
  for (const int64_t mebibytes : {80, 120, 400}) {
    const PlanRequest request = testing::small_request(8, 16384, mebibytes << 20);
    const Plan plan = make_plan(request);
    ASSERT_FALSE(plan.runners_up.empty());
    for (const RunnerUp& runner : plan.runners_up) expect_train_takes(runner.change);
  }
}

TEST(MemoryChangeFlags, a_patch_of_ds_config_means_its_flags) {
  int settings = 0;
  const PlannedStep step = wide_step();
  for (const auto& choices : possible_changes(step, testing::gpu_80gb(), {}))
    for (const MemoryChange& change : choices) {
      SCOPED_TRACE(change.flags);
      const MemoryChangeSet set{{change}, step, {}};
      const DeepSpeedConfig config = read_deepspeed_config(set.deepspeed(step), "ds_config.json");
      const std::map<std::string, std::string> flags = options_of(change.flags);
      EXPECT_EQ(config.values.empty(), change.deepspeed.empty());
      for (const GivenValue& value : config.values) {
        ++settings;
        if (value.option == "offload_dir") continue;  // is given once for the whole set
        // DeepSpeed's degree is that of all ranks of a sequence.
        const std::string option = value.option == "sp" ? "ulysses" : value.option;
        ASSERT_TRUE(flags.contains(option)) << option;
        EXPECT_EQ(flags.at(option), testing::word_of(value.value));
      }
      EXPECT_TRUE(config.without_meaning.empty());
    }
  EXPECT_GE(settings, 10);
}

TEST(MemoryChangeFlags, a_whole_sets_line_is_taken_with_accumulation_and_folder) {
  MemoryChangeSet set{{}, wide_step(), {}};
  for (const auto& choices : possible_changes(wide_step(), testing::gpu_80gb(), {})) {
    set.changes.push_back(choices.back());
    choices.back().apply(set.step);
  }
  const std::map<std::string, std::string> options = options_of(set.flags(wide_step()));
  EXPECT_EQ(options.at("gradient_accumulation_steps"), "8");
  EXPECT_EQ(options.at("offload_dir"), "DIR");
  expect_train_takes(set.flags(wide_step()));
}

}  // namespace
}  // namespace trireme::memory_change_flags_test
