#include "trireme/train/tensorboard_events.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/train/metrics.h"

#include "tests/support/file_bytes.h"
#include "tests/support/small_files.h"
#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::SmallFiles;
using testing::TemporaryFolder;
using testing::TinyRun;
using testing::train_on_ranks;

TEST(Crc32c, is_that_of_rfc_3720) {
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending += byte;
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113fdb5cU);
  EXPECT_EQ(crc32c(""), 0U);
}

// Made by TensorBoard's own code: make_tensorboard_fixture.py.
TEST(EventRecord, has_the_bytes_that_tensorboard_writes) {
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string written =
      event_record(file_version_event(1763740800.25)) + event_record(session_start_event(1763740800.5, 301)) +
      event_record(scalars_event(1763740801.125, 301,
                                 {{"train/loss", 2.5},
                                  {"train/learning_rate", 3e-4},
                                  {"memory/activations", static_cast<double>(int64_t{5} << 30)},
                                  {"train/grad_norm", infinite},
                                  {"eval_loss_by_position/8192-16383", -0.0}})) +
      event_record(scalars_event(1763740802.0, 5'000'000'000, {{"train/" + std::string(200, 'n'), 1}}));
  EXPECT_EQ(written, bytes_of(testing::source_folder() / "tests/train/fixtures/scalars.tfevents"));
}

std::map<std::string, double> named(const std::vector<EventScalar>& scalars) {
  std::map<std::string, double> values;
  for (const EventScalar& scalar : scalars)
    EXPECT_TRUE(values.emplace(scalar.tag, scalar.value).second) << scalar.tag;
  return values;
}

TEST(EventScalars, of_a_step_are_all_its_numbers_under_the_trainers_names) {
  StepRecord record;
  record.step = 7;
  record.loss = 2.25;
  record.gradient_norm = 0.5;
  record.learning_rate = 1e-3;
  record.packing = "documents";
  record.loss_scale = 1024;
  record.skipped = true;
  record.tokens_per_second = 1000;
  record.mfu = 0.25;
  record.peak_memory[MemoryCategory::optimizer] = 77;
  const auto values = named(event_scalars(record.to_json()));
  for (const auto& [tag, value] : std::map<std::string, double>{{"train/loss", 2.25},
                                                                {"train/grad_norm", 0.5},
                                                                {"train/learning_rate", 1e-3},
                                                                {"train/epoch", 0},
                                                                {"train/tokens_per_second", 1000},
                                                                {"train/mfu", 0.25},
                                                                {"train/skipped", 1},
                                                                {"train/loss_scale", 1024},
                                                                {"memory/optimizer", 77},
                                                                {"memory/activations", 0}}) {
    ASSERT_TRUE(values.contains(tag)) << tag;
    EXPECT_EQ(values.at(tag), value) << tag;
  }
  // Every field but step (where the point lies), packing (a word) and the bytes of ranks (a list); memory is
  // one for each category.
  EXPECT_EQ(values.size(), record.to_json().size() - 4 + kAllMemoryCategories.size());
}

TEST(EventScalars, of_an_evaluation_name_its_buckets_and_leave_empty_ones_out) {
  const Json record = {{"step", 4},
                       {"eval_loss", 3.5},
                       {"perplexity", 33.1},
                       {"samples", 2},
                       {"packing", "concat"},
                       {"by_position",
                        {{{"begin", 0}, {"end", 64}, {"target_tokens", 10}, {"loss", 4.5}},
                         {{"begin", 64}, {"end", 128}, {"target_tokens", 0}, {"loss", 0}},
                         {{"begin", 128}, {"end", 256}, {"target_tokens", 30}, {"loss", 2.5}}}}};
  EXPECT_THAT(
      named(event_scalars(record)),
      ElementsAre(Pair("eval/loss", 3.5), Pair("eval/perplexity", 33.1), Pair("eval/samples", 2),
                  Pair("eval_loss_by_position/0-63", 4.5), Pair("eval_loss_by_position/128-255", 2.5)));
}

// Event files of a folder in the order in which TensorBoard reads them.
std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// The events of a file, each checked against both of its CRCs; stops at a record that is not whole.
std::vector<std::string> events_of(const fs::path& file) {
  const std::string bytes = bytes_of(file);
  const auto masked = [](std::string_view of) {
    const uint32_t crc = crc32c(of);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
  };
  std::vector<std::string> events;
  size_t at = 0;
  while (at + 12 <= bytes.size()) {
    uint64_t length = 0;
    uint32_t length_crc = 0, event_crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&length_crc, bytes.data() + at + 8, 4);
    if (at + 16 + length > bytes.size()) break;
    const std::string event = bytes.substr(at + 12, length);
    std::memcpy(&event_crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(length_crc, masked(std::string_view(bytes).substr(at, 8)));
    EXPECT_EQ(event_crc, masked(event));
    events.push_back(event);
    at += 16 + length;
  }
  EXPECT_EQ(at, bytes.size()) << "a record is cut off in " << file;
  return events;
}

Json step_record(int64_t step) {
  return {{"step", step}, {"loss", 1.5}};
}

TEST(TensorBoardEvents, a_file_begins_with_its_version_and_the_step_that_it_goes_on_from) {
  const TemporaryFolder folder;
  TensorBoardEvents events(folder / "a/b", 300);
  EXPECT_TRUE(event_files(folder / "a/b").empty());
  EXPECT_EQ(events.write(step_record(300)), "");
  const auto files = event_files(folder / "a/b");
  ASSERT_EQ(files.size(), 1U);
  EXPECT_TRUE(std::regex_match(files[0].filename().string(),
                               std::regex(R"(events\.out\.tfevents\.[0-9]{10}\..+\.[0-9]+\.0)")))
      << files[0];
  const auto written = events_of(files[0]);  // while it is open: what was written can be read
  ASSERT_EQ(written.size(), 3U);
  EXPECT_THAT(written[0], EndsWith("\x1a\x0d"
                                   "brain.Event:2"));
  EXPECT_THAT(written[1],
              EndsWith("\x10\xac\x02\x3a\x02\x08\x01"));  // step = 300, session_log.status = START
  EXPECT_THAT(written[2], AllOf(HasSubstr("\x10\xac\x02\x2a"), HasSubstr("train/loss")));
}

TEST(TensorBoardEvents, a_later_process_writes_a_file_that_is_read_after_the_others) {
  const TemporaryFolder folder;
  // Of a machine whose clock is early, or of this second.
  const std::string earlier = folder.write("events.out.tfevents.4000000000.zebra.99999999.0", "");
  folder.write("notes.txt", "");
  TensorBoardEvents(folder.path(), 5).write(step_record(5));
  TensorBoardEvents(folder.path(), 9).write(step_record(9));
  const auto files = event_files(folder.path());
  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(files[0], earlier);
  EXPECT_EQ(events_of(files[1]).at(1).substr(9, 2), "\x10\x05");
  EXPECT_EQ(events_of(files[2]).at(1).substr(9, 2), "\x10\x09");
}

TEST(TensorBoardEvents, a_disk_without_room_loses_points_and_cuts_none) {
  const TemporaryFolder folder;
  TensorBoardEvents events(folder.path(), 1);
  std::vector<std::string> problems;
  {
    const SmallFiles small(20);  // not even the beginning
    problems.push_back(events.write(step_record(1)));
  }
  EXPECT_TRUE(event_files(folder.path()).empty());
  {
    const SmallFiles small(200);
    for (int64_t step = 2; step < 8; ++step) problems.push_back(events.write(step_record(step)));
  }
  EXPECT_EQ(events.write(step_record(8)), "");
  EXPECT_THAT(problems.front(), HasSubstr("large"));
  EXPECT_THAT(problems.back(), HasSubstr("large"));
  EXPECT_EQ(problems[1], "");
  const auto files = event_files(folder.path());
  ASSERT_EQ(files.size(), 1U);
  const auto written = events_of(files[0]);
  const auto lost = static_cast<size_t>(std::count_if(
      problems.begin() + 1, problems.end(), [](const std::string& problem) { return !problem.empty(); }));
  EXPECT_EQ(written.size(), 2 + 6 - lost + 1);
  EXPECT_THAT(written.back(), HasSubstr("\x10\x08\x2a"));
}

TEST(TensorBoardEvents, a_folder_that_cannot_be_made_is_told) {
  const TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_THAT(TensorBoardEvents(folder / "file/runs", 1).write(step_record(1)), HasSubstr("Not a directory"));
}

TEST(TensorBoardEvents, a_file_that_was_removed_is_told_and_begun_anew) {
  const TemporaryFolder folder;
  TensorBoardEvents events(folder / "runs", 1, 0);
  EXPECT_EQ(events.write(step_record(1)), "");
  fs::remove_all(folder / "runs");
  EXPECT_THAT(events.write(step_record(2)), HasSubstr("removed"));
  EXPECT_EQ(events.write(step_record(3)), "");
  const auto files = event_files(folder / "runs");
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(events_of(files[0]).size(), 2U + 2);
}

// Events of a file behind its first two: one a step.
size_t points(const fs::path& file) {
  return events_of(file).size() - 2;
}

TEST(TrainerEvents, a_run_that_goes_on_adds_a_file_and_a_new_run_leaves_none_of_the_old) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  const fs::path folder = options.output_dir / "runs";
  train_on_ranks(2, options, 4);
  ASSERT_EQ(event_files(folder).size(), 1U);
  EXPECT_EQ(points(event_files(folder)[0]), 4U);
  options.resume_from_checkpoint = "true";
  train_on_ranks(2, options);
  const auto files = event_files(folder);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(points(files[1]), 5U);
  EXPECT_EQ(events_of(files[1])[1].substr(9, 2), "\x10\x05");  // starts with step 5

  options.resume_from_checkpoint = "";
  options.overwrite_output_dir = true;
  options.context_stages = "16:2";
  train_on_ranks(1, options);
  ASSERT_EQ(event_files(folder).size(), 1U);
  EXPECT_EQ(points(event_files(folder)[0]), 2U);
  // Nor does one whose predecessor ended before its first checkpoint.
  fs::remove_all(options.output_dir / "checkpoints");
  options.overwrite_output_dir = false;
  train_on_ranks(1, options);
  EXPECT_EQ(event_files(folder).size(), 1U);
}

TEST(TrainerEvents, go_where_they_are_asked_to_or_nowhere) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:2";
  options.logging_dir = run.folder() / "elsewhere";
  train_on_ranks(1, options);
  EXPECT_EQ(event_files(options.logging_dir).size(), 1U);
  EXPECT_FALSE(fs::exists(options.output_dir / "runs"));
  EXPECT_EQ(read_json(options.output_dir / "config.json")["logging_dir"], options.logging_dir.string());
  options.tensorboard = false;
  EXPECT_THAT(testing::problem_of(options), AllOf(HasSubstr("--logging_dir"), HasSubstr("--report_to none")));
  options = run.options("none");
  options.context_stages = "16:2";
  options.tensorboard = false;
  train_on_ranks(1, options);
  EXPECT_FALSE(fs::exists(options.output_dir / "runs"));
}

TEST(TrainerEvents, that_cannot_be_written_are_told_once_and_training_goes_on) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  std::ofstream(run.folder() / "file").put('x');
  options.logging_dir = run.folder() / "file";
  const testing::TinyOutcome trained = train_on_ranks(1, options);
  EXPECT_EQ(trained.outcome.steps, 9);
  const std::string &text = trained.output, warning = "warning: cannot write TensorBoard's event file in ";
  const size_t first = text.find(warning);
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(warning, first + 1), std::string::npos) << text;
  EXPECT_EQ(testing::metrics_of(options).size(), 9U);
}

}  // namespace
}  // namespace trireme
