#include "trireme/train/metrics.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/file_bytes.h"
#include "tests/support/file_operations.h"
#include "tests/support/json_lines.h"
#include "tests/support/small_files.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::json_lines;
using testing::SmallFiles;
using testing::TemporaryFolder;

StepRecord record_of(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 2.5;
  record.memory_bytes = int64_t{3} << 20;
  return record;
}

TEST(Metrics, a_resumed_run_keeps_the_lines_up_to_its_step_and_drops_a_torn_last_one) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "metrics.jsonl";
  {
    MetricsLog log(file, -1);
    for (int64_t step = 1; step <= 5; ++step) EXPECT_EQ(log.write(record_of(step).to_json()), "");
  }
  std::ofstream(file, std::ios::app) << R"({"step": 6, "los)";
  {
    MetricsLog log(file, 3);
    EXPECT_EQ(log.write(record_of(4).to_json()), "");
  }
  const auto lines = json_lines(file);
  ASSERT_EQ(lines.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  const MetricsLog emptied(file, -1);
  EXPECT_TRUE(json_lines(file).empty());
}

TEST(Metrics, tell_the_last_step_beside_lines_that_are_no_records) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "metrics.jsonl";
  EXPECT_EQ(last_recorded_step(file), std::nullopt);
  std::ofstream(file) << "{\"step\": 4}\n{\"step\": 5, \"eval_loss\": 1}\nnothing\n{\"step\": 6, \"los";
  EXPECT_EQ(last_recorded_step(file), 5);
}

TEST(Metrics, a_record_tells_the_peak_bytes_of_every_category) {
  StepRecord record = record_of(1);
  record.peak_memory[MemoryCategory::activations] = int64_t{5} << 30;
  const Json json = record.to_json();
  ASSERT_TRUE(json["memory"].is_object());
  EXPECT_EQ(json["memory"].size(), kAllMemoryCategories.size());
  EXPECT_EQ(json["memory"]["activations"], int64_t{5} << 30);
  EXPECT_EQ(json["memory"]["parameters"], 0);
  EXPECT_EQ(json["memory_bytes"], record.memory_bytes);

  record.host_peak_memory[MemoryCategory::activations] = int64_t{7} << 30;
  const Json beside_a_gpu = record.to_json();
  EXPECT_EQ(beside_a_gpu["memory"].size(), kAllMemoryCategories.size() + 1);
  EXPECT_EQ(beside_a_gpu["memory"]["activations"], int64_t{5} << 30);
  EXPECT_EQ(beside_a_gpu["memory"]["host_activations"], int64_t{7} << 30);
}

TEST(Metrics, a_folder_that_cannot_be_made_is_a_data_error) {
  const TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_THROW(MetricsLog(folder / "file/metrics.jsonl", -1), DataError);
}

TEST(Metrics, a_full_disk_is_told_and_leaves_whole_lines) {
  const TemporaryFolder folder;
  MetricsLog log(folder / "metrics.jsonl", -1);
  EXPECT_EQ(log.write(record_of(1).to_json()), "");
  {
    const SmallFiles small(fs::file_size(folder / "metrics.jsonl") + 20);
    EXPECT_THAT(log.write(record_of(2).to_json()), HasSubstr("large"));
  }
  EXPECT_EQ(log.write(record_of(3).to_json()), "");
  const auto lines = json_lines(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["step"], 3);
}

TEST(Metrics, a_resumed_run_whose_disk_is_full_keeps_the_old_file) {
  const TemporaryFolder folder;
  const fs::path file = folder / "metrics.jsonl";
  {
    MetricsLog log(file, -1);
    for (int64_t step = 1; step <= 50; ++step) log.write(record_of(step).to_json());
  }
  const std::string before = testing::bytes_of(file);
  {
    const SmallFiles small(before.size() / 2);
    EXPECT_THROW(MetricsLog(file, 40), DataError);
  }
  EXPECT_EQ(testing::bytes_of(file), before);
  EXPECT_EQ(folder.files(), 1U);
}

TEST(Metrics, of_a_resumed_run_are_written_beside_and_renamed) {
  const TemporaryFolder folder;
  const fs::path file = folder / "metrics.jsonl";
  {
    MetricsLog log(file, -1);
    for (int64_t step = 1; step <= 3; ++step) log.write(record_of(step).to_json());
  }
  const testing::FileOperations operations;
  const MetricsLog nothing_to_drop(file, 3);
  EXPECT_THAT(operations.in(folder.path().string()), ::testing::IsEmpty());
  const MetricsLog log(file, 2);
  EXPECT_THAT(operations.in(folder.path().string()),
              ::testing::ElementsAre("write metrics.jsonl.partial", "sync metrics.jsonl.partial",
                                     "rename metrics.jsonl.partial metrics.jsonl", "sync ."));
}

TEST(Metrics, lines_that_are_no_records_are_left_out_and_told_once) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("metrics.jsonl", "{\"step\": 1}\n{\"step\": \"two\"}\n[3]\n{\"step\": 1e400}\n" +
                                        std::string(100000, '[') + "\n{\"step\": 4}\n{\"step\": 9");
  std::vector<std::string> notes;
  const MetricsLog log(file, 5, [&](const std::string& text) { notes.push_back(text); });
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], AllOf(HasSubstr("4 lines"), HasSubstr("line 2"), HasSubstr(file.string())));
  EXPECT_EQ(testing::bytes_of(file), "{\"step\": 1}\n{\"step\": 4}\n");
}

TEST(Metrics, a_file_that_was_removed_is_told_and_begun_anew) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run/metrics.jsonl";
  MetricsLog log(file, -1, nullptr, 0);
  EXPECT_EQ(log.write(record_of(1).to_json()), "");
  fs::remove_all(folder / "run");
  EXPECT_THAT(log.write(record_of(2).to_json()), HasSubstr("removed"));
  EXPECT_EQ(log.write(record_of(3).to_json()), "");
  EXPECT_EQ(json_lines(file).size(), 2U);
}

TEST(Metrics, a_file_that_could_not_be_begun_anew_is_tried_again) {
  const TemporaryFolder folder;
  MetricsLog log(folder / "run/metrics.jsonl", -1, nullptr, 0);
  fs::remove_all(folder / "run");
  folder.write("run", "in its place");
  EXPECT_NE(log.write(record_of(1).to_json()), "");
  fs::remove(folder / "run");
  EXPECT_THAT(log.write(record_of(2).to_json()), HasSubstr("begun anew"));
  EXPECT_EQ(json_lines(folder / "run/metrics.jsonl").size(), 1U);
}

}  // namespace
}  // namespace trireme
