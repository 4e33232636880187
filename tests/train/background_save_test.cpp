// Checkpoints that are written while training goes on: whole runs, in threads, on a disk that is held.
#include "trireme/train/background_save.h"

#include <optional>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/file_bytes.h"
#include "tests/support/held_sync.h"
#include "tests/support/small_files.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HeldSync;
using ::testing::Not;
using testing::saved_steps;
using testing::tensors_of;
using testing::TinyRun;
using testing::train_on_ranks;

TrainOptions in_background(const TinyRun& run, const std::string& name, int64_t save_steps) {
  TrainOptions options = run.options(name);
  options.save_steps = save_steps;
  options.engine.save_in_background = true;
  return options;
}

// Trains on `ranks` threads and calls `on_step` on rank 0 after each step, before what the run does then.
TrainOutcome train_with(int ranks, const TrainOptions& options,
                        const std::function<void(int64_t step)>& on_step,
                        const std::atomic<bool>* stop = nullptr) {
  at::set_num_threads(1);
  TrainOutcome outcome;
  run_ranks_as_threads(ranks, [&](World& world) {
    TrainHooks hooks;
    hooks.stop_requested = stop;
    hooks.on_step = [&](const StepRecord& record) {
      if (world.rank() == 0) on_step(record.step);
    };
    const TrainOutcome of_rank = train(world, options, hooks);
    if (world.rank() == 0) outcome = of_rank;
  });
  return outcome;
}

bool is_reached_soon(const HeldSync& held) {
  for (int i = 0; i < 4000 && !held.reached(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return held.reached();
}

// Releases a sync once it is held.
std::jthread released_later(HeldSync& held) {
  return std::jthread([&held] {
    is_reached_soon(held);
    held.release();
  });
}

class BackgroundSaves : public ::testing::TestWithParam<std::pair<int, ZeroStage>> {};

TEST_P(BackgroundSaves, are_byte_for_byte_those_of_the_foreground_though_training_went_on) {
  const auto [ranks, zero] = GetParam();
  const TinyRun run;
  TrainOptions foreground = run.options("foreground");
  foreground.save_steps = 3;
  foreground.engine.zero = zero;
  train_on_ranks(ranks, foreground);
  TrainOptions options = in_background(run, "background", 3);
  options.engine.zero = zero;
  const RunDirectory folder(options.output_dir);
  // Rank 0 has written its file meanwhile: only all of them make a checkpoint.
  HeldSync held(cat("step-3.tmp/rank-0000", ranks - 1));
  const TrainOutcome outcome = train_with(ranks, options, [&](int64_t step) {
    if (step < 5) return;
    if (step == 5) {
      EXPECT_TRUE(is_reached_soon(held));
      EXPECT_TRUE(fs::exists(folder.temporary(3)));
      EXPECT_FALSE(fs::exists(folder.temporary(3) / "manifest.json"));
      EXPECT_EQ(saved_steps(options), std::vector<int64_t>{});
    }
    held.release();
  });
  EXPECT_EQ(outcome.steps, 9);
  EXPECT_THAT(saved_steps(options), ElementsAre(3, 6, 9));
  const RunDirectory expected(foreground.output_dir);
  for (const int64_t step : {3, 6, 9})
    for (const auto& entry : fs::directory_iterator(expected.checkpoint(step))) {
      const std::string name = entry.path().filename().string();
      // These two tell of the option itself, and of the folder.
      if (name == "trainer_state.json" || name == "manifest.json") continue;
      EXPECT_TRUE(bytes_of(folder.checkpoint(step) / name) == bytes_of(entry.path())) << step << " " << name;
    }
  for (const char* key : {"loader", "loss", "optimizer_steps", "tokens_seen", "step"})
    EXPECT_EQ(read_json(folder.checkpoint(6) / "trainer_state.json")[key],
              read_json(expected.checkpoint(6) / "trainer_state.json")[key]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, BackgroundSaves,
                         ::testing::Values(std::pair(1, ZeroStage::none), std::pair(2, ZeroStage::none),
                                           std::pair(2, ZeroStage::parameters)));

// The folder as it is in the middle of a save is what kill -9 leaves.
TEST(BackgroundSave, that_a_kill_ends_loses_nothing_but_itself) {
  const TinyRun run;
  const auto straight = train_on_ranks(2, run.options("straight"));
  TrainOptions options = in_background(run, "run", 2);
  const fs::path killed = run.folder() / "killed";
  HeldSync held("step-4.tmp/rank-00001");
  train_with(2, options, [&](int64_t step) {
    if (step != 5) return;
    EXPECT_TRUE(is_reached_soon(held));
    fs::copy(options.output_dir, killed, fs::copy_options::recursive);
    held.release();
  });
  EXPECT_TRUE(fs::exists(RunDirectory(killed).temporary(4)));
  options.output_dir = killed;
  EXPECT_THAT(saved_steps(options), ElementsAre(2));
  options.resume_from_checkpoint = "true";
  const auto resumed = train_on_ranks(2, options);
  EXPECT_THAT(resumed.output, HasSubstr("resumed at step 2"));
  EXPECT_THAT(saved_steps(options), ElementsAre(2, 4, 6, 8, 9));
  EXPECT_EQ(tensors_of(resumed.outcome.checkpoint), tensors_of(straight.outcome.checkpoint));
}

TEST(BackgroundSave, on_a_full_disk_ends_the_run_on_all_ranks_with_the_step_and_keeps_the_one_before) {
  const TinyRun run;
  TrainOptions options = in_background(run, "run", 2);
  // The save of a stop is in the foreground: none is under way at step 4.
  std::atomic<bool> stop = false;
  train_with(
      2, options, [&](int64_t step) { stop = step == 2; }, &stop);
  options.resume_from_checkpoint = "true";
  std::optional<testing::SmallFiles> full;
  const std::string problem = testing::message_of<DataError>([&] {
    train_with(2, options, [&](int64_t step) {
      // More than a line of metrics.jsonl, less than a rank's file.
      if (step == 4) full.emplace(fs::file_size(RunDirectory(options.output_dir).metrics()) + 20'000);
    });
  });
  EXPECT_THAT(problem, AllOf(HasSubstr("could not save the checkpoint of step 4"),
                             HasSubstr("The last good checkpoint is"), HasSubstr("step-2")));
  full.reset();
  EXPECT_THAT(saved_steps(options), ElementsAre(2));
  EXPECT_FALSE(fs::exists(RunDirectory(options.output_dir).temporary(4)));
  EXPECT_GT(verify_checkpoint(RunDirectory(options.output_dir).checkpoint(2)), 0);
}

TEST(BackgroundSave, is_finished_before_a_stopped_run_ends) {
  const TinyRun run;
  const TrainOptions options = in_background(run, "run", 2);
  std::atomic<bool> stop = false;
  HeldSync held("step-2.tmp/rank-00000");
  const std::jthread later = released_later(held);
  const TrainOutcome outcome = train_with(
      2, options, [&](int64_t step) { stop = step == 3; }, &stop);
  EXPECT_TRUE(outcome.stopped);
  EXPECT_THAT(saved_steps(options), ElementsAre(2, 3));
  EXPECT_EQ(outcome.checkpoint, RunDirectory(options.output_dir).checkpoint(3));
}

TEST(BackgroundSave, is_begun_by_the_clock_when_the_one_before_is_done_so_that_training_never_waits) {
  const TinyRun run;
  TrainOptions options = in_background(run, "run", 0);
  options.save_minutes = 1e-9;  // always due
  HeldSync held("step-1.tmp/rank-00001");
  const TrainOutcome outcome = train_with(2, options, [&](int64_t step) {
    if (step != 4) return;
    EXPECT_TRUE(is_reached_soon(held));
    EXPECT_EQ(saved_steps(options), std::vector<int64_t>{});
    held.release();
  });
  EXPECT_EQ(outcome.steps, 9);
  EXPECT_THAT(saved_steps(options), AllOf(Contains(1), Contains(9), Not(Contains(2)), Not(Contains(3))));
}

// The step after the save fails on all ranks alike.
TrainOptions not_finite_after_step_1(const TinyRun& run) {
  TrainOptions options = in_background(run, "run", 1);
  options.context_stages = "16:9";
  options.learning_rate = 1e30;
  options.warmup_ratio = 0;
  return options;
}

TEST(BackgroundSave, is_finished_and_named_where_the_next_step_is_not_finite) {
  const TinyRun run;
  const TrainOptions options = not_finite_after_step_1(run);
  HeldSync held("step-1.tmp/rank-00000");
  const std::jthread later = released_later(held);
  EXPECT_THAT(testing::message_of<DataError>([&] { train_with(2, options, [](int64_t) {}); }),
              AllOf(HasSubstr("training stopped at step 2"),
                    HasSubstr(RunDirectory(options.output_dir).checkpoint(1).string())));
  EXPECT_THAT(saved_steps(options), ElementsAre(1));
}

TEST(BackgroundSave, is_finished_and_named_where_one_rank_cannot_read_its_next_tokens) {
  const TinyRun run;
  TrainOptions options = in_background(run, "run", 1);
  options.train_file = run.folder() / "cut";
  for (const char* ending : {".bin", ".idx"})
    fs::copy_file(run.tokens().string() + ending, options.train_file.string() + ending);
  HeldSync held("step-1.tmp/rank-00000");
  const std::jthread later = released_later(held);
  EXPECT_THAT(testing::message_of<DataError>([&] {
                train_with(1, options,
                           [&](int64_t) { fs::resize_file(options.train_file.string() + ".bin", 0); });
              }),
              AllOf(HasSubstr("training stopped at step 2"), HasSubstr("cut.bin"),
                    HasSubstr(RunDirectory(options.output_dir).checkpoint(1).string())));
  EXPECT_THAT(saved_steps(options), ElementsAre(1));
}

TEST(BackgroundSave, that_failed_is_told_where_the_next_step_is_not_finite) {
  const TinyRun run;
  const TrainOptions options = not_finite_after_step_1(run);
  std::optional<testing::SmallFiles> full;  // of less than a rank's file
  EXPECT_THAT(
      testing::message_of<DataError>([&] { train_with(2, options, [&](int64_t) { full.emplace(20'000); }); }),
      AllOf(HasSubstr("training stopped at step 2"),
            HasSubstr("meanwhile it could not save the checkpoint of step 1")));
  full.reset();
  EXPECT_THAT(saved_steps(options), ElementsAre());
}

TEST(BackgroundSave, tells_what_steps_lost_to_it_and_what_it_took_beside_them) {
  const TinyRun run;
  const TrainOptions options = in_background(run, "run", 3);
  HeldSync held("step-3.tmp/rank-00000");
  train_with(1, options, [&](int64_t step) {
    if (step == 5) held.release();
  });
  std::map<int64_t, Json> records;
  for (const Json& record : testing::metrics_of(options)) records[record["step"].get<int64_t>()] = record;
  std::vector<int64_t> saves, done;
  for (const auto& [step, record] : records) {
    if (record.contains("save_seconds")) saves.push_back(step);
    if (record.contains("save_background_seconds")) done.push_back(step);
  }
  EXPECT_THAT(saves, ElementsAre(4, 7));
  ASSERT_FALSE(done.empty());
  EXPECT_GT(done.front(), 5);
  // What two steps ran beside.
  EXPECT_GT(records[done.front()]["save_background_seconds"].get<double>(),
            records[4]["seconds"].get<double>() + records[5]["seconds"].get<double>());
}

}  // namespace
}  // namespace trireme
