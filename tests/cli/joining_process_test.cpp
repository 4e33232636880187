// Ranks that were started by hand, as processes: one that is stopped, missing, wrong or killed, and what the
// others say.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/listening_socket.h"
#include "trireme/base/rank_activity.h"

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"
#include "tests/train/tiny_run.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::kLongerThanHangs_seconds;
using ::testing::Not;
using testing::Program;
using testing::ProgramOptions;
using testing::train_words;
using testing::Words;

class HandStarted : public ::testing::Test {
 protected:
  HandStarted() : port_(ListeningSocket("127.0.0.1", 0).port()) {}

  ProgramOptions rank(int rank, int size,
                      const std::string& secret = "00112233445566778899aabbccddeeff") const {
    ProgramOptions options;
    options.environment = {{"RANK", std::to_string(rank)},         {"WORLD_SIZE", std::to_string(size)},
                           {"LOCAL_RANK", std::to_string(rank)},   {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", std::to_string(port_)}, {"TRIREME_SECRET", secret}};
    return options;
  }
  static ProgramOptions watched(ProgramOptions options, const ActivityReader& activity) {
    options.environment["TRIREME_ACTIVITY_FD"] = std::to_string(activity.descriptor());
    options.inherit = activity.descriptor();
    return options;
  }
  static bool is_connecting(const ActivityReader& activity) {
    return eventually([&] {
      const auto state = activity.read();
      return state && state->phase == RankPhase::connecting;
    });
  }
  Words train(const std::string& timeout_seconds) const {
    return train_words(run_, run_.folder() / "run",
                       {"--ulysses", "2", "--max_steps", "1000000", "--ddp_timeout", timeout_seconds});
  }
  Words evaluate(const char* flag, const std::filesystem::path& model) const {
    return testing::joined({{"eval", "loss", flag, model.string(), "--eval_file", run_.tokens().string()},
                            {"--max_seq_length", "32", "--threads", "1", "--zero", "3", "--ulysses", "2"},
                            {"--ddp_timeout", kLongerThanHangs_seconds}});
  }
  std::filesystem::path log(int rank) const {
    return run_.folder() / ("rank" + std::to_string(rank) + ".log");
  }

  testing::TinyRun run_;
  int port_ = 0;
};

TEST_F(HandStarted, beside_a_rank_0_that_was_stopped_at_start_ends_after_the_timeout_and_says_so) {
  const ActivityReader activity;
  const Program rank_0(train("2"), log(0), watched(rank(0, 2), activity));
  ASSERT_TRUE(is_connecting(activity)) << rank_0.output();
  ASSERT_TRUE(eventually([&] { return activity.read()->waiting; }));
  rank_0.send(SIGSTOP);
  Program rank_1(train("2"), log(1), rank(1, 2));
  EXPECT_EQ(rank_1.wait(), 75) << rank_1.output();
  EXPECT_THAT(rank_1.output(), AllOf(HasSubstr("CommError"), HasSubstr("rank 0's address, 127.0.0.1:"),
                                     HasSubstr("timeout 2.0 s"), Not(HasSubstr("frame #"))));
}

TEST_F(HandStarted, ends_at_once_when_asked_to_stop_while_it_connects) {
  const ActivityReader activity;
  Program alone(train(kLongerThanHangs_seconds), log(1), watched(rank(1, 2), activity));
  ASSERT_TRUE(is_connecting(activity)) << alone.output();
  alone.send(SIGTERM);
  EXPECT_EQ(alone.wait(), 75) << alone.output();
}

TEST_F(HandStarted, with_another_world_size_or_secret_exits_78_and_is_named_by_the_others) {
  Program rank_0(train(kLongerThanHangs_seconds), log(0), rank(0, 2));
  Program rank_1(train(kLongerThanHangs_seconds), log(1), rank(1, 4));
  EXPECT_EQ(rank_0.wait(), 78) << rank_0.output();
  EXPECT_EQ(rank_1.wait(), 78) << rank_1.output();
  for (const Program* program : {&rank_0, &rank_1})
    EXPECT_THAT(program->output(), HasSubstr("was started with WORLD_SIZE 4, rank 0 with 2"));

  const ActivityReader activity;
  Program other_1(train(kLongerThanHangs_seconds), log(3),
                  watched(rank(1, 2, "ffeeddccbbaa99887766554433221100"), activity));
  ASSERT_TRUE(is_connecting(activity)) << other_1.output();  // within the time of rank 0, which ends by it
  Program other_0(train("2"), log(2), rank(0, 2));
  EXPECT_EQ(other_1.wait(), 78) << other_1.output();
  EXPECT_EQ(other_0.wait(), 75) << "a claim without proof decides nothing: " << other_0.output();
  EXPECT_THAT(other_0.output(), AllOf(HasSubstr("rank 1 (host "), HasSubstr("did not prove the run's secret"),
                                      Not(HasSubstr("00112233")), Not(HasSubstr("ffeeddcc"))));
}

TEST_F(HandStarted, with_another_learning_rate_exits_78_on_both_and_names_the_option) {
  const auto train_at = [&](const char* rate) {
    Words words = train(kLongerThanHangs_seconds);
    words.insert(words.end(), {"--learning_rate", rate});
    return words;
  };
  Program rank_0(train_at("1e-4"), log(0), rank(0, 2));
  Program rank_1(train_at("2e-4"), log(1), rank(1, 2));
  for (Program* program : {&rank_0, &rank_1}) {
    EXPECT_EQ(program->wait(), 78) << program->output();
    EXPECT_THAT(program->output(), HasSubstr("learning_rate is 0.0001 on rank 0 and 0.0002 on rank 1"));
  }
}

TEST_F(HandStarted, that_would_evaluate_other_weights_exits_78_on_both_and_names_the_file) {
  testing::write_tiny_model(run_.folder() / "other", testing::tiny_llama_config(), 0.2);
  Program rank_0(evaluate("--model_name_or_path", run_.model()), log(0), rank(0, 2));
  Program rank_1(evaluate("--model_name_or_path", run_.folder() / "other"), log(1), rank(1, 2));
  for (Program* program : {&rank_0, &rank_1}) {
    EXPECT_EQ(program->wait(), 78) << program->output();
    EXPECT_THAT(program->output(),
                AllOf(HasSubstr("differ in the weights of their model"), HasSubstr("model.safetensors is")));
  }
}

// The run saves more before rank 1 looks.
TEST_F(HandStarted, evaluates_the_newest_checkpoint_that_rank_0_finds) {
  const std::filesystem::path earlier = run_.folder() / "earlier", later = run_.folder() / "later";
  TrainOptions options = run_.options("later");
  options.save_steps = 4;
  testing::train_on_ranks(1, options);
  std::filesystem::create_directories(earlier / "checkpoints");
  std::filesystem::copy(later / "checkpoints" / "step-4", earlier / "checkpoints" / "step-4",
                        std::filesystem::copy_options::recursive);
  const auto printed = [&](const std::filesystem::path& of_rank_0, const std::filesystem::path& of_rank_1) {
    Program rank_0(evaluate("--checkpoint", of_rank_0), log(0), rank(0, 2));
    Program rank_1(evaluate("--checkpoint", of_rank_1), log(1), rank(1, 2));
    EXPECT_EQ(rank_0.wait(), 0) << rank_0.output();
    EXPECT_EQ(rank_1.wait(), 0) << rank_1.output();
    return rank_0.output();
  };
  const std::string before = printed(earlier, earlier);
  EXPECT_THAT(before, HasSubstr("perplexity"));
  EXPECT_EQ(printed(earlier, later), before);
  EXPECT_NE(printed(later, later), before);
}

// Of a processor with bf16 products, oneDNN's limit makes one without.
TEST_F(HandStarted, on_a_processor_without_bf16_products_makes_all_multiply_in_fp32) {
  const Words words = train_words(run_, run_.folder() / "run",
                                  {"--bf16", "--zero", "1", "--device", "cpu", "--max_steps", "2",
                                   "--ddp_timeout", kLongerThanHangs_seconds});
  ProgramOptions without = rank(1, 2);
  without.environment["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE";
  Program rank_0(words, log(0), rank(0, 2)), rank_1(words, log(1), without);
  EXPECT_EQ(rank_1.wait(), 0) << rank_1.output();
  EXPECT_EQ(rank_0.wait(), 0) << rank_0.output();
  EXPECT_THAT(rank_0.output(), HasSubstr("values in bf16, matmuls in fp32"));
}

TEST_F(HandStarted, a_killed_peer_is_told_in_one_line_without_a_librarys_stack_trace) {
  const ActivityReader activity;
  Program rank_0(train(kLongerThanHangs_seconds), log(0), watched(rank(0, 2), activity));
  const Program rank_1(train(kLongerThanHangs_seconds), log(1), rank(1, 2));
  ASSERT_TRUE(eventually([&] {
    const auto state = activity.read();
    return state && state->step >= 2;
  })) << rank_0.output();
  rank_1.send(SIGKILL);
  EXPECT_EQ(rank_0.wait(), 75) << rank_0.output();
  EXPECT_THAT(rank_0.output(),
              AllOf(HasSubstr("trireme: CommError: "), HasSubstr(" in step "), Not(HasSubstr("frame #")),
                    Not(HasSubstr("Exception raised")), Not(HasSubstr(".cpp:")), Not(HasSubstr(".cc:"))));
}

}  // namespace
}  // namespace trireme
