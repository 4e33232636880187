// A longer context by flags alone, as a user goes about it: stages from a file, one more run, export.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/train/run_directory.h"

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"

namespace fs = std::filesystem;

namespace trireme::context_extension_process_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Words;

TEST(ContextExtensionProcess, stages_from_a_file_then_one_flag_then_export) {
  const testing::TinyRun run(3000);
  const fs::path& folder = run.folder();
  const fs::path out = folder / "run", stages = folder / "stages.yaml";
  std::ofstream(stages) << "- {steps: 2}\n"
                           "- max_seq_length: 640\n"
                           "  tokens: 2k\n"
                           "  rope_scaling: {rope_type: yarn, factor: 2}\n"
                           "  recompute: full\n";
  const auto ran = [&](const Words& words, int code) {
    return testing::output_of(words, folder / "log", code);
  };
  EXPECT_THAT(ran(testing::joined({testing::train_words(run, out),
                                   {"--context_stages", stages.string()},
                                   {"--packing", "concat"}}),
                  0),
              AllOf(HasSubstr("stage 2 has recompute \"auto\" -> \"full\", rope_scaling"),
                    HasSubstr("assembled anew"),
                    HasSubstr("rope yarn x 2 of 512 positions, theta 10000: 1,024 positions"),
                    HasSubstr("length 32 -> 640: the loss was ")));
  // The run's config.json holds the stages, not the name of their file.
  EXPECT_THAT(read_json(RunDirectory(out).config())["context_stages"].get<std::string>(),
              HasSubstr(R"("max_seq_length":640)"));

  const Words next{"train", "--continue_run", out.string(), "--max_steps", "1", "--threads", "1"};
  EXPECT_THAT(ran(testing::joined({next, {"--max_seq_length", "1500"}}), 78),
              AllOf(HasSubstr("1,500 tokens is longer than the 1,024 positions"),
                    HasSubstr("--rope_scaling yarn:3")));
  EXPECT_THAT(ran(testing::joined({next, {"--max_seq_length", "1500", "--rope_scaling", "yarn:3"}}), 0),
              AllOf(HasSubstr("begins with weights and optimizer states"), HasSubstr("length 640 -> 1,500")));

  const fs::path model = folder / "exported";
  ran({"export", "--checkpoint", out.string() + "-continued", "--out", model.string()}, 0);
  const Json config = read_json(model / "config.json");
  EXPECT_EQ(config["max_position_embeddings"], 1536);
  EXPECT_EQ(config["rope_scaling"],
            Json({{"rope_type", "yarn"}, {"factor", 3.0}, {"original_max_position_embeddings", 512}}));
}

}  // namespace
}  // namespace trireme::context_extension_process_test
