// The folder of a run that cannot be read, whose checkpoints are broken, or that another run has.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/train/run_directory.h"

#include "tests/support/file_bytes.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::run_folder_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TinyRun;
using testing::train_on_ranks;

TEST(RunFolder, that_cannot_be_read_is_an_error_and_not_an_empty_one) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 2);
  const RunDirectory folder(options.output_dir);
  // A name that no folder can have gives another error than "not there", also to root.
  const fs::path saved = folder.checkpoints(), elsewhere = run.folder() / "elsewhere";
  fs::rename(saved, elsewhere);
  fs::create_symlink("checkpoints", saved);  // a loop
  EXPECT_THAT([&] { folder.list(); }, ::testing::ThrowsMessage<DataError>(
                                          AllOf(HasSubstr(saved.string()), HasSubstr("symbolic links"))));
  options.resume_from_checkpoint = "auto";
  const std::string metrics = testing::bytes_of(folder.metrics());
  EXPECT_THROW(train_on_ranks(1, options), DataError);
  EXPECT_EQ(testing::bytes_of(folder.metrics()), metrics);
  EXPECT_EQ(RunDirectory(run.folder() / "none").list().size(), 0U);
}

TEST(RunFolder, whose_checkpoints_are_all_broken_is_not_begun_anew_by_itself) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 2);
  fs::remove(RunDirectory(options.output_dir).checkpoint(2) / "rank-00000.safetensors");
  options.resume_from_checkpoint = "auto";
  EXPECT_THAT([&] { train_on_ranks(1, options); }, ::testing::ThrowsMessage<DataError>(AllOf(
                                                       HasSubstr("none is whole"), HasSubstr("rank-00000"))));
}

TEST(RunFolder, is_one_run_s_at_a_time) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:3";
  std::string second;
  run_ranks_as_threads(1, [&](World& world) {
    TrainHooks hooks;
    hooks.on_step = [&](const StepRecord& record) {
      if (record.step == 1) second = testing::problem_of(options);
    };
    train(world, options, hooks);
  });
  EXPECT_THAT(second, AllOf(HasSubstr("in use by another run"), HasSubstr("process")));
}

TEST(RunFolder, is_rid_of_what_a_killed_run_left) {
  const TinyRun run;
  const RunDirectory folder(run.folder() / "run");
  folder.prepare();
  fs::create_directories(folder.temporary(3));
  fs::create_directories(folder.data());
  const fs::path partial = folder.data() / "train-0123456789abcdef.bin.partial-77";
  const fs::path of_another = folder.data() / "mine.bin.partial-77";
  for (const fs::path& file : {partial, of_another}) std::ofstream(file) << "x";
  folder.prepare();
  EXPECT_FALSE(fs::exists(folder.temporary(3)));
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_TRUE(fs::exists(of_another));
}

}  // namespace
}  // namespace trireme::run_folder_test
