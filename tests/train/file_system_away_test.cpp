// A file system over the network that is away for a while: the run ends so that a restart goes on, and no checkpoint
// counts as broken for it.
#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/failing_file.h"
#include "tests/train/tiny_run.h"

namespace trireme::file_system_away_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::FailingFile;
using testing::FileCall;
using ::testing::HasSubstr;
using testing::saved_steps;
using testing::TinyRun;
using testing::train_on_ranks;

TrainOptions with_checkpoints(const TinyRun& run) {
  TrainOptions options = run.options("run");
  options.save_steps = 3;
  return options;
}

// To go on from step 7; steps 3 and 6 are saved too.
TrainOptions stopped_run(const TinyRun& run) {
  TrainOptions options = with_checkpoints(run);
  train_on_ranks(2, options, 7);
  options.resume_from_checkpoint = "auto";
  return options;
}

TEST(FileSystemAway, while_a_checkpoint_is_checked_leaves_it_the_one_to_resume_from) {
  const TinyRun run;
  const TrainOptions options = stopped_run(run);
  {
    const FailingFile away(FileCall::read, "step-7/rank-00001", ESTALE);
    EXPECT_THAT(
        testing::problem_of<SystemFault>(options, 2),
        AnyOf(HasSubstr("Stale file handle; its file system is away"), HasSubstr("failed while checking")));
    EXPECT_TRUE(away.reached());
  }
  EXPECT_THAT(saved_steps(options), ElementsAre(3, 6, 7));
  EXPECT_THAT(train_on_ranks(2, options).output, HasSubstr("resumed at step 7"));
}

TEST(FileSystemAway, while_the_weights_are_read_ends_all_ranks_together) {
  const TinyRun run;
  const FailingFile away(FileCall::read, "model/model.safetensors", ETIMEDOUT);
  EXPECT_THAT(testing::problem_of<SystemFault>(run.options("run"), 2),
              AnyOf(HasSubstr("its file system is away"), HasSubstr("failed while reading the model")));
}

TEST(FileSystemAway, while_a_checkpoint_is_saved_tells_the_step_and_the_one_before) {
  for (const bool in_background : {false, true}) {
    const TinyRun run;
    TrainOptions options = with_checkpoints(run);
    options.engine.save_in_background = in_background;
    const FailingFile away(FileCall::sync, "step-6.tmp/rank-00001", ESTALE);
    EXPECT_THAT(testing::problem_of<SystemFault>(options, 2),
                AllOf(HasSubstr("could not save the checkpoint of step 6"),
                      HasSubstr("The last good checkpoint is"), HasSubstr("step-3")));
    EXPECT_THAT(saved_steps(options), ElementsAre(3));
  }
}

// A bad sector stays bad: the checkpoint before is the one to go on from.
TEST(FileSystemAway, is_not_a_disk_that_cannot_be_read) {
  const TinyRun run;
  const TrainOptions options = stopped_run(run);
  const FailingFile broken(FileCall::read, "step-7/rank-00001", EIO);
  EXPECT_THAT(train_on_ranks(2, options).output,
              AllOf(HasSubstr("passing over the broken checkpoint"), HasSubstr("resumed at step 6")));
}

}  // namespace
}  // namespace trireme::file_system_away_test
