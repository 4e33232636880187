// A guide's DeepSpeed file, from its contradiction to a trained run, as a user meets it.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/train/run_directory.h"

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"
#include "tests/support/file_bytes.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::config_process_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Words;

// As guides to DeepSpeed-Ulysses show it; of it, fp16 is left to bf16, which a CPU computes fast.
const char* const kGuide = R"({
  "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 10,
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
  "sequence_parallelism": {"enabled": true, "degree": 8, "sequence_parallel_type": "ulysses"},
  "bf16": {"enabled": true}, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5
})";

TEST(ConfigProcess, a_guides_file_is_mended_trains_and_its_run_is_replayed) {
  const testing::TinyRun run;
  const fs::path folder = run.folder(), ds = folder / "ds.json", log = folder / "log";
  std::ofstream(ds) << kGuide;
  const auto ran = [&](const Words& words, int code) { return testing::output_of(words, log, code); };
  const auto train = [&](const fs::path& file, const Words& more) {
    return testing::joined(
        {{"launch", "--nproc_per_node", "2", "--", "train"},
         {"--model_name_or_path", run.model().string(), "--train_file", run.tokens().string()},
         {"--max_seq_length", "32", "--max_steps", "2", "--threads", "1", "--peak_tflops", "1"},
         {"--deepspeed", file.string()},
         more});
  };
  const std::string out = (folder / "run").string(), again = (folder / "again").string();
  EXPECT_THAT(ran(train(ds, {"--output_dir", out}), 78),
              AllOf(HasSubstr("ConfigError"), HasSubstr("sequence_parallelism.degree: 8 ranks"),
                    HasSubstr("trireme config fix")));
  EXPECT_THAT(ran({"config", "fix", ds.string(), "--ranks", "2"}, 0),
              AllOf(HasSubstr("degree: 8 -> 2"), HasSubstr("train_batch_size: 1 -> 4")));
  const std::string output = ran(train(folder / "ds.fixed.json", {"--output_dir", out}), 0);
  EXPECT_THAT(output,
              AllOf(HasSubstr("zero_optimization.stage"), HasSubstr("configuration, beside the defaults")));
  const Json config = read_json(RunDirectory(out).config());
  const Json expected{{"zero", 3},
                      {"offload_optimizer", "cpu"},
                      {"offload_params", "cpu"},
                      {"ulysses", 2},
                      {"ring", 1},
                      {"bf16", true},
                      {"per_device_train_batch_size", 1},
                      {"gradient_accumulation_steps", 4},
                      {"max_grad_norm", 0.5},
                      {"logging_steps", 10},
                      {"max_steps", 2}};
  for (const auto& [name, value] : expected.items()) EXPECT_EQ(config[name], value) << name;

  ran({"launch", "--nproc_per_node", "2", "--", "train", "--config", RunDirectory(out).config().string(),
       "--output_dir", again, "--threads", "1"},
      0);
  Json replayed = read_json(RunDirectory(again).config());
  EXPECT_EQ(replayed["output_dir"], again);
  EXPECT_EQ(replayed["logging_dir"], again + "/runs");
  replayed["output_dir"] = out;
  replayed["logging_dir"] = out + "/runs";
  EXPECT_EQ(replayed, config);
  EXPECT_EQ(testing::tensors_of(RunDirectory(again).checkpoint(2)),
            testing::tensors_of(RunDirectory(out).checkpoint(2)));
}

}  // namespace
}  // namespace trireme::config_process_test
