// Every command that takes a model finds it as every other does: a folder, or org/name in the Hugging Face
// cache; one that is not there is refused with the command that downloads it.
#include <cstdlib>
#include <fstream>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/bench.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/init.h"
#include "trireme/cli/tokenize.h"
#include "trireme/cli/train.h"
#include "trireme/cli/verify.h"

#include "bench/comm/bench_comm.h"
#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme::model_lookup_test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

struct Call {
  std::string name;
  int (*command)(const Words&);
  Words words;  // the model's flag is the last one
};

class ModelLookup : public ::testing::Test {
 protected:
  ModelLookup() {
    ::setenv("HF_HOME", folder_.path().c_str(), 1);
    ::unsetenv("HF_HUB_CACHE");
    std::ofstream text(folder_ / "text.txt");
    for (int line = 0; line < 20; ++line) text << "Line " << line << " of a text.\n";
  }
  ~ModelLookup() override {
    ::unsetenv("HF_HOME");
    at::set_num_threads(threads_);
  }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::vector<Call> calls() const {
    return {
        {"train",
         run_train,
         {"--train_file", path("text.txt"), "--output_dir", path("run"), "--max_steps", "1",
          "--max_seq_length", "16", "--per_device_train_batch_size", "1", "--peak_tflops", "1", "--threads",
          "1", "--model_name_or_path"}},
        {"eval",
         run_eval,
         {"loss", "--eval_file", path("text.txt"), "--max_seq_length", "16", "--threads", "1",
          "--model_name_or_path"}},
        {"verify", run_verify, {"--reference", path("no_such_file"), "--threads", "1", "--model"}},
        {"tokenize", run_tokenize, {"--input", path("text.txt"), "--output", path("set"), "--tokenizer"}},
        {"bench step",
         run_bench,
         {"step", "--seq", "16", "--steps", "1", "--warmup", "0", "--threads", "1", "--model"}},
        {"bench comm",
         run_bench_comm,
         {"--tokens", "16", "--repeats", "1", "--threads", "1", "--model_name_or_path"}},
    };
  }
  static std::string error_of(const Call& call, const std::string& model) {
    Words words = call.words;
    words.push_back(model);
    return testing::message_of<Error>([&] { testing::stdout_of([&] { return call.command(words); }); });
  }

  const int threads_ = at::get_num_threads();
  testing::TemporaryFolder folder_;
};

TEST_F(ModelLookup, one_that_is_not_in_the_cache_gives_the_command_that_downloads_it) {
  for (const Call& call : calls())
    EXPECT_THAT(error_of(call, "org/name"), HasSubstr("hf download org/name")) << call.name;
}

TEST_F(ModelLookup, a_name_is_looked_up_in_the_cache) {
  const fs::path model = folder_ / "hub" / "models--org--name";
  testing::stdout_of([&] {
    return run_init({"--preset", "tiny", "--out", (model / "snapshots" / "abc").string(), "--set",
                     "num_hidden_layers=1", "hidden_size=32", "intermediate_size=32"});
  });
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs" / "main") << "abc";
  for (const Call& call : calls()) {
    const std::string error = error_of(call, "org/name");
    if (call.name == "verify") {
      EXPECT_THAT(error, HasSubstr("no_such_file"));  // the next thing that it looks for
    } else {
      EXPECT_EQ(error, "no error") << call.name;
    }
  }
  EXPECT_TRUE(fs::exists(folder_ / "set.idx"));
}

TEST_F(ModelLookup, a_folder_without_what_is_asked_of_it_is_refused_by_name) {
  fs::create_directories(folder_ / "empty");
  for (const Call& call : calls())
    EXPECT_THAT(error_of(call, path("empty")),
                HasSubstr(call.name == "tokenize" ? "has no tokenizer.json" : "has no config.json"))
        << call.name;
}

}  // namespace
}  // namespace trireme::model_lookup_test
