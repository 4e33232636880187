#include "trireme/train/progress_line.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::progress_line_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(ProgressLine, without_a_terminal_is_a_plain_line_at_first_every_logging_steps_and_at_the_end) {
  std::ostringstream out;
  ProgressLine progress(out, {}, 10, 25, 3, [] { return 0.0; });
  for (int64_t step = 1; step <= 25; ++step) progress.show(record_of(step));
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  for (const char* part : {"step 1/25", "step 10/25", "stage 1/3", "loss 2.5000", "12,345 tok/s",
                           "MFU 25.0 %", "mem 3.0 MiB", "left 0:02:05", "length 4,096", "step 25/25"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(ProgressLine, is_never_silent_for_more_than_a_minute_and_a_step) {
  std::ostringstream out;
  double now = 1000;
  ProgressLine progress(out, {}, 500, 10000, 1, [&] { return now; });
  std::vector<int64_t> shown;
  for (int64_t step = 1; step <= 10; ++step, now += 25) {
    out.str("");
    progress.show(record_of(step));
    if (!out.str().empty()) shown.push_back(step);
  }
  EXPECT_EQ(shown, (std::vector<int64_t>{1, 4, 7, 10}));
}

TEST(ProgressLine, on_a_terminal_is_one_line_redrawn_until_a_note_comes) {
  std::ostringstream out;
  ProgressLine progress(
      out, [] { return 200; }, 500, 25, 1);
  progress.show(record_of(1));
  progress.show(record_of(2));
  EXPECT_EQ(out.str().find('\n'), std::string::npos);
  progress.note("saved");
  EXPECT_THAT(out.str(), HasSubstr("\nsaved\n"));
}

TEST(ProgressLine, is_never_wider_than_the_terminal_and_leaves_out_what_matters_least) {
  int columns = 200;
  for (const int width : {200, 118, 80, 60, 40, 20, 5, 1}) {
    std::ostringstream out;
    ProgressLine progress(
        out, [&] { return columns; }, 500, 25, 3);
    columns = 200;
    progress.show(record_of(1));
    const size_t first = out.str().size();
    columns = width;  // of a window that was made narrower
    progress.show(record_of(2));
    const std::string line = out.str().substr(first);
    EXPECT_LE(line.find('\r'), static_cast<size_t>(std::max(0, width - 1))) << width;
    EXPECT_EQ(line.find('\n'), std::string::npos);
    if (width == 80) {
      EXPECT_THAT(line,
                  AllOf(HasSubstr("step 2/25"), HasSubstr("loss"), HasSubstr("left"), Not(HasSubstr("mem"))));
    }
    if (width == 40) {
      EXPECT_THAT(line, AllOf(HasSubstr("step 2/25"), HasSubstr("loss")));
    }
  }
}

TEST(ProgressLine, of_a_terminal_of_unknown_width_is_a_plain_line_every_logging_steps) {
  std::ostringstream out;
  ProgressLine progress(
      out, [] { return 0; }, 10, 25, 1);
  for (int64_t step = 1; step <= 25; ++step) progress.show(record_of(step));
  EXPECT_EQ(out.str().find('\r'), std::string::npos);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("step 10/25"), HasSubstr("mem"), Not(HasSubstr("step 9/25"))));
}

}  // namespace
}  // namespace trireme::progress_line_test
