// Signals, stopped ranks and readers that go, as they meet a real run: two ranks under `trireme launch`.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/stop_request.h"
#include "trireme/train/run_directory.h"

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"
#include "tests/support/file_bytes.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::stop_process_test {
namespace {

using testing::eventually;
using ::testing::HasSubstr;
using testing::on_two_ranks;
using testing::Program;
using testing::train_words;
using testing::Words;

class StoppedRun : public ::testing::Test {
 protected:
  Words train(const Words& more) const {
    return train_words(run_, output_dir(), testing::joined({{"--save_steps", "0"}, more}));
  }
  Words launch(const Words& more) const { return on_two_ranks(train(more)); }
  fs::path output_dir() const { return run_.folder() / "run"; }
  fs::path log() const { return run_.folder() / "log"; }
  int64_t steps() const {
    std::ifstream in(RunDirectory(output_dir()).metrics());
    int64_t count = 0;
    for (std::string line; std::getline(in, line);) ++count;
    return count;
  }
  // All that it trained is in its one checkpoint.
  void expect_saved() const {
    const auto checkpoints = RunDirectory(output_dir()).list();
    ASSERT_EQ(checkpoints.size(), 1U);
    EXPECT_EQ(checkpoints.back().step, steps());
  }

  testing::TinyRun run_;
};

fs::path proc(pid_t process) {
  return "/proc/" + std::to_string(process);
}

// Whether a signal is in the mask of a process or thread that has `name` ("SigCgt:"); none: it has ended.
std::optional<bool> is_in_mask(const fs::path& task, const std::string& name, int signal) {
  std::ifstream in(task / "status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name))
      return (std::stoull(line.substr(name.size()), nullptr, 16) >> (signal - 1) & 1) != 0;
  return std::nullopt;
}

bool handles(pid_t process, int signal) {
  return is_in_mask(proc(process), "SigCgt:", signal).value_or(false);
}

// The threads of a process that a signal can interrupt.
int64_t threads_open_to(pid_t process, int signal) {
  const fs::directory_iterator threads(proc(process) / "task");
  return std::count_if(begin(threads), end(threads), [&](const fs::directory_entry& thread) {
    return is_in_mask(thread.path(), "SigBlk:", signal) == false;
  });
}

struct Requests {
  std::vector<int> signals;
  bool to_all = false;  // to the ranks as well, as a scheduler does
};

class Asked : public StoppedRun, public ::testing::WithParamInterface<Requests> {};

TEST_P(Asked, saves_what_it_has_and_exits_75) {
  Program program(launch({"--max_steps", "1000000"}), log());
  ASSERT_TRUE(eventually([&] { return steps() >= 2; })) << program.output();
  const auto ranks = program.children();
  for (const int signal : GetParam().signals) {
    program.send(signal);
    for (const pid_t rank : ranks)
      if (GetParam().to_all) ::kill(rank, signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(program.wait(), 75) << program.output();
  expect_saved();
}

INSTANTIATE_TEST_SUITE_P(Run, Asked,
                         ::testing::Values(Requests{{SIGTERM, SIGTERM}},  // GNU timeout
                                           Requests{{SIGHUP, SIGINT}},
                                           Requests{{SIGUSR1, SIGUSR2, SIGQUIT}, true}));

TEST_F(StoppedRun, by_a_signal_to_one_rank_is_not_started_again) {
  auto words = launch({"--max_steps", "1000000"});
  words.insert(words.begin() + 1, {"--max_restarts", "3"});
  Program program(words, log());
  ASSERT_TRUE(eventually([&] { return steps() >= 2; })) << program.output();
  ::kill(program.children().at(1), SIGUSR1);
  EXPECT_EQ(program.wait(), 75) << program.output();
  EXPECT_THAT(program.output(), ::testing::Not(HasSubstr("starting all ranks again")));
  expect_saved();
}

TEST_F(StoppedRun, is_asked_on_one_thread_which_does_not_compute) {
  Program program(launch({"--max_steps", "1000000"}), log());
  ASSERT_TRUE(eventually([&] { return steps() >= 2; })) << program.output();
  for (const pid_t rank : program.children())
    for (const int signal : kStopSignals) EXPECT_EQ(threads_open_to(rank, signal), 1) << signal;
}

TEST_F(StoppedRun, in_start_up_ends_at_once) {
  // Rank 1 waits for a rank 0 that does not come.
  const auto environment = {std::pair{"RANK", "1"},    {"WORLD_SIZE", "2"},          {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "9"}};
  for (const auto& [name, value] : environment) ::setenv(name, value, 1);
  Program program(
      train({"--max_steps", "5", "--ulysses", "2", "--ddp_timeout", testing::kLongerThanHangs_seconds}),
      log());
  for (const auto& [name, value] : environment) ::unsetenv(name);
  ASSERT_TRUE(eventually([&] { return handles(program.pid(), SIGQUIT); })) << program.output();
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 75) << program.output();
  EXPECT_THAT(program.output(), HasSubstr("asked to stop before training began; nothing was lost"));
}

TEST_F(StoppedRun, is_not_what_a_reader_that_goes_makes_of_it) {
  Program program(launch({"--max_steps", "4"}), log(), {.errors = log(), .unread = true});
  EXPECT_EQ(program.wait(), 0) << program.output();
  EXPECT_EQ(steps(), 4);
  expect_saved();
}

TEST_F(StoppedRun, by_a_rank_that_hangs_names_it_and_what_it_did) {
  Program program(launch({"--max_steps", "1000000", "--ddp_timeout", "2"}), log());
  ASSERT_TRUE(eventually([&] { return steps() >= 2; })) << program.output();
  ::kill(program.children().at(1), SIGSTOP);
  EXPECT_EQ(program.wait(), 75) << program.output();
  const std::string output = program.output();
  const size_t report = output.find("trireme launch: ");
  ASSERT_NE(report, std::string::npos);
  EXPECT_THAT(output.substr(report), ::testing::StartsWith("trireme launch: rank 1 (process "));
  // Not ContainsRegex: Oniguruma, which tokenizers link, has another regexec().
  const std::regex hung("hung: it was stopped .SIGSTOP., .* for [0-9]+ s, .*step [0-9]+");
  EXPECT_TRUE(std::regex_search(output, hung)) << output;
}

TEST_F(StoppedRun, by_an_error_says_it_once_for_all_ranks) {
  EXPECT_THAT(testing::output_of(launch({"--no_such_flag", "1"}), log(), 78),
              HasSubstr("[ranks 0, 1] trireme: ConfigError: "));
}

TEST(StandardStreams, that_were_closed_are_no_file_and_no_connection) {
  const testing::TemporaryFolder folder;
  const std::string errors = (folder / "errors").string();
  const std::string words = "\"$TRIREME_BINARY\" launch --nproc_per_node 2 -- --version <&- >&- 2>" + errors;
  EXPECT_EQ(std::system(words.c_str()), 0) << testing::bytes_of(errors);
}

TEST(LaunchedHelp, is_printed_once_and_by_no_rank) {
  const testing::TemporaryFolder folder;
  const std::string alone = testing::output_of({"train", "--help"}, folder / "log");
  EXPECT_THAT(alone, HasSubstr("--model_name_or_path"));
  EXPECT_EQ(testing::output_of({"launch", "--nproc_per_node", "2", "--", "train", "--help"}, folder / "log"),
            alone);
}

}  // namespace
}  // namespace trireme::stop_process_test
