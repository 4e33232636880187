// What happens to a run when its processes are killed or asked to stop, its disk is full, or its input is
// broken: the program is run as a user runs it, two ranks under `trireme launch`.
#include <fstream>
#include <limits>
#include <optional>
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/memory/memory_file_system.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/train/run_directory.h"

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"
#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::on_two_ranks;
using testing::output_of;
using testing::Program;
using testing::tensors_of;
using testing::train_words;
using testing::Words;

class Processes : public ::testing::Test {
 protected:
  Words train(const std::string& run, const Words& more) const {
    return on_two_ranks(
        train_words(run_, run_.folder() / run,
                    testing::joined({{"--ddp_timeout", testing::kLongerThanHangs_seconds}, more})));
  }
  fs::path log(const std::string& name) const { return run_.folder() / (name + ".log"); }
  RunDirectory directory(const std::string& run) const { return RunDirectory(run_.folder() / run); }
  int64_t steps(const std::string& run) const {
    std::ifstream in(directory(run).metrics());
    int64_t count = 0;
    for (std::string line; std::getline(in, line);) ++count;
    return count;
  }

  testing::TinyRun run_;
};

TEST_F(Processes, a_rank_that_is_killed_ends_the_run_before_the_timeout_and_is_named) {
  Program program(train("run", {"--max_steps", "1000000"}), log("run"));
  ASSERT_TRUE(eventually([&] { return steps("run") >= 3; })) << program.output();
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(ranks[1], SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL) << program.output();
  EXPECT_THAT(program.output(), HasSubstr("rank 1"));
  EXPECT_EQ(program.output().find("frame #"), std::string::npos) << "libtorch's stack traces";
  for (const pid_t rank : ranks) EXPECT_NE(::kill(rank, 0), 0) << "a rank is still there";
}

TEST_F(Processes, a_run_that_is_asked_to_stop_saves_exits_75_and_resumes_bitwise) {
  Program whole(train("whole", {"--max_steps", "250", "--save_steps", "0"}), log("whole"));
  Program program(train("run", {"--max_steps", "250", "--save_steps", "0"}), log("run"));
  ASSERT_TRUE(eventually([&] { return steps("run") >= 5; })) << program.output();
  program.send(SIGTERM);
  ASSERT_EQ(program.wait(), 75) << program.output();
  EXPECT_THAT(program.output(),
              AllOf(HasSubstr("asked to stop"), HasSubstr("--resume_from_checkpoint true")));
  ASSERT_EQ(directory("run").list().size(), 1U);
  const int64_t stopped_at = directory("run").list().back().step;
  EXPECT_GE(stopped_at, 5);
  ASSERT_LT(stopped_at, 250) << "the run was over before it was asked";

  const Words again{"--max_steps", "250", "--save_steps", "0", "--resume_from_checkpoint", "true"};
  EXPECT_THAT(output_of(train("run", again), log("resumed")),
              HasSubstr("resumed at step " + std::to_string(stopped_at)));
  ASSERT_EQ(whole.wait(), 0) << whole.output();
  EXPECT_EQ(tensors_of(directory("run").checkpoint(250)), tensors_of(directory("whole").checkpoint(250)));
  EXPECT_EQ(steps("run"), 250);
}

TEST_F(Processes, a_full_disk_during_a_save_is_told_and_leaves_the_checkpoint_before_usable) {
  output_of(train("run", {"--max_steps", "4", "--lr_scheduler_type", "constant"}), log("first"));
  const auto before = tensors_of(directory("run").checkpoint(4));
  // Room for metrics and text, not for a shard.
  const std::vector<std::string> more{
      "--max_steps", "8", "--lr_scheduler_type", "constant", "--resume_from_checkpoint", "true"};
  EXPECT_THAT(output_of(train("run", more), log("full"), 65, {.largest_file_bytes = 20000}),
              AllOf(HasSubstr("DataError"), HasSubstr("bytes"), HasSubstr("step-4")));
  EXPECT_EQ(directory("run").list().size(), 1U);
  EXPECT_EQ(tensors_of(directory("run").checkpoint(4)), before);
  output_of(train("run", more), log("again"));
  EXPECT_EQ(directory("run").list().back().step, 8);
}

TEST_F(Processes, weights_that_are_not_finite_are_an_error_of_the_data) {
  const ModelConfig config = read_model_config(run_.model());
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(run_.model());
  write_checkpoint(run_.folder() / "broken", config, layout,
                   [&](int unit) {
                     at::Tensor flat = at::zeros({layout.units[static_cast<size_t>(unit)].elements});
                     reader.read_unit(layout.units[static_cast<size_t>(unit)], flat);
                     if (unit == 0) flat.fill_(std::numeric_limits<float>::infinity());
                     return flat;
                   },
                   at::kFloat, {});
  auto words = train("run", {"--max_steps", "4"});
  std::replace(words.begin(), words.end(), run_.model().string(), (run_.folder() / "broken").string());
  EXPECT_THAT(output_of(words, log("run"), 65),
              AllOf(HasSubstr("DataError"), HasSubstr("broken/model.safetensors"),
                    HasSubstr("row 0 holds infinity")));
}

TEST_F(Processes, empty_and_missing_data_and_wrong_json_are_clear_errors) {
  const auto end_of = [&](const fs::path& train_file, int code) {
    return output_of(
        {"train", "--model_name_or_path", run_.model().string(), "--train_file", train_file.string(),
         "--output_dir", (run_.folder() / "run").string(), "--max_steps", "1", "--max_seq_length", "16"},
        log("run"), code);
  };
  EXPECT_THAT(end_of(run_.folder() / "nowhere", 78), HasSubstr("nowhere"));
  for (const char* name : {"none.bin", "none.idx"}) const std::ofstream made(run_.folder() / name);
  EXPECT_THAT(end_of(run_.folder() / "none", 65), HasSubstr("none.idx"));
  fs::create_symlink("loop.bin", run_.folder() / "loop.bin");
  EXPECT_THAT(end_of(run_.folder() / "loop", 65), HasSubstr("loop.bin"));
  std::ofstream(run_.model() / "config.json") << "{\"model_type\": \"llama\", oops}";
  EXPECT_THAT(end_of(run_.tokens(), 65), HasSubstr("config.json"));
}

TEST_F(Processes, eval_and_export_read_the_newest_checkpoint_and_agree) {
  output_of(train("run", {"--max_steps", "6"}), log("train"));
  output_of(
      {"export", "--checkpoint", (run_.folder() / "run").string(), "--out", (run_.folder() / "hf").string()},
      log("export"));
  const auto evaluate = [&](const std::string& flag, const fs::path& model) {
    return output_of({"eval", "loss", flag, model.string(), "--eval_file", run_.tokens().string(),
                      "--max_seq_length", "32", "--threads", "1"},
                     log("eval"));
  };
  const std::string of_checkpoint = evaluate("--checkpoint", run_.folder() / "run");
  EXPECT_THAT(of_checkpoint, HasSubstr("perplexity"));
  EXPECT_EQ(of_checkpoint, evaluate("--model_name_or_path", run_.folder() / "hf"));
}

TEST_F(Processes, offload_to_a_disk_that_is_memory_is_told_once) {
  if (!memory_file_system("/dev/shm")) GTEST_SKIP() << "/dev/shm is not in memory here";
  const auto output_with = [&](const std::string& run, const std::string& folder) {
    return output_of(train(run, {"--max_steps", "1", "--offload_optimizer", "disk", "--offload_dir", folder}),
                     log(run));
  };
  const std::string warned = output_with("memory", "/dev/shm");
  const std::string warning = "warning: --offload_dir /dev/shm lies on ";
  const size_t first = warned.find(warning);
  EXPECT_NE(first, std::string::npos) << warned;
  EXPECT_EQ(warned.find(warning, first + 1), std::string::npos) << warned;
  if (!memory_file_system(run_.folder())) {
    EXPECT_THAT(output_with("disk", run_.folder().string()), ::testing::Not(HasSubstr("warning")));
  }
}

TEST(TextProgram, text_is_tokenized_once_and_two_ranks_train_on_it) {
  const testing::TemporaryFolder folder;
  const std::string model = (folder.path() / "model").string(), run = (folder.path() / "run").string();
  output_of({"init", "--preset", "tiny", "--out", model, "--set", "hidden_size=16", "intermediate_size=16"},
            folder / "init.log");
  fs::create_directories(folder.path() / "text");
  for (const char* name : {"a.txt", "b.txt"}) {
    std::ofstream out(folder.path() / "text" / name);
    for (int line = 0; line < 40; ++line) out << name << " has the line " << line << "\n";
  }
  const Words train = testing::joined(
      {{"launch", "--nproc_per_node", "2", "--", "train", "--model_name_or_path", model, "--output_dir", run},
       {"--train_file", (folder / "text").string(), "--eval_file", (folder / "text/a.txt").string()},
       {"--context_stages", "32:3,64:2", "--ulysses", "2", "--per_device_train_batch_size", "1"},
       {"--threads", "1", "--bf16", "--peak_tflops", "1"}});
  EXPECT_THAT(output_of(train, folder / "train.log"),
              AllOf(HasSubstr("step 5/5"), HasSubstr("stage 2/2"), HasSubstr("held-out loss")));
  EXPECT_FALSE(fs::is_empty(folder.path() / "run" / "data"));
  EXPECT_TRUE(fs::exists(folder.path() / "run" / "checkpoints" / "step-5" / "tokenizer.json"));

  const fs::path texts = folder.path() / "texts";
  fs::create_directory(texts);
  std::ofstream(texts / "a.txt") << std::string(400, 'x');
  std::ofstream(texts / "b.gz") << "\x1f\x8b";
  EXPECT_THAT(output_of({"eval", "loss", "--checkpoint", run, "--eval_file", texts.string(),
                         "--max_seq_length", "64", "--threads", "1"},
                        folder / "eval.log"),
              AllOf(HasSubstr("that are left out: 1"), HasSubstr("b.gz is"), HasSubstr("perplexity")));
}

TEST(VerifyProgram, exits_0_on_the_reference_and_1_beyond_the_tolerance) {
  const fs::path fixture = testing::source_folder() / "tests/parity/fixtures/llama";
  const testing::TemporaryFolder folder;
  const std::vector<std::string> verify{
      "verify",    "--model", fixture.string(), "--reference", (fixture / "reference.safetensors").string(),
      "--threads", "1"};
  auto words = verify;
  words.insert(words.begin(), {"launch", "--nproc_per_node", "2", "--"});
  EXPECT_THAT(output_of(words, folder / "ranks.log"), AllOf(HasSubstr("PASSED"), HasSubstr("over 2 ranks")));
  words = verify;
  words.insert(words.end(), {"--ranks_as_threads", "3", "--tolerance", "1e-12", "--json"});
  EXPECT_THAT(output_of(words, folder / "threads.log", 1),
              AllOf(HasSubstr("\"passed\": false"), HasSubstr("\"ranks\": 3")));
  words = verify;
  words.insert(words.end(), {"--ranks_as_threads", "2", "--sp", "3"});
  EXPECT_THAT(output_of(words, folder / "sp.log", 78),
              AllOf(HasSubstr("--sp: 3 ranks are to share a sample, and the run has 2 ranks"),
                    HasSubstr("give --ranks_as_threads 3")));
}

// What a command under the launcher writes to stdout, to be parsed whole.
Json stdout_of_two_ranks(const std::vector<std::string>& command, const testing::TemporaryFolder& folder) {
  std::vector<std::string> words{"launch", "--nproc_per_node", "2", "--"};
  words.insert(words.end(), command.begin(), command.end());
  Program program(words, folder / "stdout", {.errors = folder / "stderr"});
  EXPECT_EQ(program.wait(), 0) << program.output() << testing::bytes_of(folder / "stderr");
  return Json::parse(program.output(), nullptr, false);
}

TEST(LaunchedJson, is_the_whole_of_stdout) {
  const testing::TemporaryFolder folder;
  const std::string fixture = (testing::source_folder() / "tests/parity/fixtures/llama").string();
  const Json verified = stdout_of_two_ranks({"verify", "--json", "--model", fixture, "--reference",
                                             fixture + "/reference.safetensors", "--threads", "1"},
                                            folder);
  ASSERT_TRUE(verified.is_object());
  EXPECT_EQ(verified["passed"], true);
  EXPECT_EQ(verified["ranks"], 2);
  const Json exchanges =
      stdout_of_two_ranks({"bench", "comm", "--heads", "4", "--kv_heads", "2", "--head_dim", "8", "--tokens",
                           "33", "--repeats", "1", "--threads", "1", "--json=true"},
                          folder);
  ASSERT_TRUE(exchanges.is_object());
  EXPECT_EQ(exchanges["ranks"], 2);
  // Every rank of this command prints; one is what a program reads.
  const Json info = stdout_of_two_ranks({"info", "--json", "--measure", "false"}, folder);
  ASSERT_TRUE(info.is_object());
  EXPECT_TRUE(info.contains("devices"));
  EXPECT_THAT(testing::bytes_of(folder / "stderr"), HasSubstr("[rank 1] {"));
}

TEST(Info, tells_what_the_gpus_allocator_was_told_by_the_program_or_by_the_user) {
  const testing::TemporaryFolder folder;
  const auto settings = [&](const std::optional<std::string>& mine) {
    if (mine) ::setenv("PYTORCH_CUDA_ALLOC_CONF", mine->c_str(), 1);
    const std::string info = output_of({"info", "--json", "--measure", "false"}, folder / "info", 0,
                                       {.errors = folder / "stderr"});
    ::unsetenv("PYTORCH_CUDA_ALLOC_CONF");
    return parse_json(info, "info").at("gpu_allocator").get<std::string>();
  };
  EXPECT_EQ(settings(std::nullopt), "expandable_segments:True");
  EXPECT_EQ(settings("max_split_size_mb:512"), "max_split_size_mb:512");
}

TEST(BenchStep, tells_where_memory_went_beside_its_line_of_json) {
  const testing::TemporaryFolder folder;
  const std::string fixture = (testing::source_folder() / "tests/parity/fixtures/llama").string();
  Program program({"bench", "step", "--model", fixture, "--seq", "32", "--steps", "1", "--warmup", "0",
                   "--threads", "1", "--memory_report", "--json"},
                  folder / "stdout", {.errors = folder / "stderr"});
  EXPECT_EQ(program.wait(), 0) << program.output() << testing::bytes_of(folder / "stderr");
  EXPECT_TRUE(Json::parse(program.output(), nullptr, false).is_object());
  EXPECT_THAT(testing::bytes_of(folder / "stderr"), AllOf(HasSubstr("formula"), HasSubstr("activations")));
}

TEST(LaunchedText, has_its_rank_before_each_line_where_json_is_switched_off) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(
      output_of({"launch", "--nproc_per_node", "1", "--", "info", "--json=false", "--measure", "false"},
                folder / "log"),
      HasSubstr("[rank 0] version: "));
}

}  // namespace
}  // namespace trireme
