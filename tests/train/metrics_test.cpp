#include "trireme/train/metrics.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

StepRecord record_of(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 2.5;
  record.sequence_tokens = 4096;
  record.tokens_per_second = 12345;
  record.mfu = 0.25;
  record.memory_bytes = int64_t{3} << 20;
  record.eta_seconds = 125;
  return record;
}

std::vector<Json> lines_of(const std::filesystem::path& file) {
  std::vector<Json> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
  return all;
}

TEST(Metrics, a_resumed_run_keeps_the_lines_up_to_its_step_and_drops_a_torn_last_one) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "metrics.jsonl";
  {
    MetricsLog log(file, -1);
    for (int64_t step = 1; step <= 5; ++step) EXPECT_TRUE(log.write(record_of(step).to_json()));
  }
  std::ofstream(file, std::ios::app) << R"({"step": 6, "los)";
  {
    MetricsLog log(file, 3);
    EXPECT_TRUE(log.write(record_of(4).to_json()));
  }
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  MetricsLog(file, -1);
  EXPECT_TRUE(lines_of(file).empty());
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

TEST(Metrics, a_folder_that_is_not_there_is_a_data_error_and_a_full_disk_is_told) {
  EXPECT_THROW(MetricsLog("/nonexistent/metrics.jsonl", -1), DataError);
  MetricsLog full("/dev/full", -1);
  EXPECT_FALSE(full.write(record_of(1).to_json()));
}

TEST(ProgressLine, without_a_terminal_is_a_plain_line_every_logging_steps_and_at_the_end) {
  std::ostringstream out;
  ProgressLine progress(out, false, 10, 25, 3);
  for (int64_t step = 1; step <= 25; ++step) progress.show(record_of(step));
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  for (const char* part : {"step 10/25", "stage 1/3", "loss 2.5000", "12,345 tok/s", "MFU 25.0 %",
                           "mem 3.0 MiB", "left 0:02:05", "length 4,096", "step 25/25"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(ProgressLine, on_a_terminal_is_one_line_redrawn_until_a_note_comes) {
  std::ostringstream out;
  ProgressLine progress(out, true, 500, 25, 1);
  progress.show(record_of(1));
  progress.show(record_of(2));
  EXPECT_EQ(out.str().find('\n'), std::string::npos);
  progress.note("saved");
  EXPECT_THAT(out.str(), HasSubstr("\nsaved\n"));
}

}  // namespace
}  // namespace trireme
