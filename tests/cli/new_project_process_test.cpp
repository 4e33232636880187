// `trireme new` as a user meets it: a folder that trains as it is.
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/train/run_directory.h"

#include "tests/cli/program.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme::new_project_process_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NewProjectProcess, a_native_folder_validates_and_trains_two_ranks_by_its_script) {
  const testing::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "run", log = temporary.path() / "log";
  const auto ran = [&](const std::vector<std::string>& words, int code) {
    return testing::output_of(words, log, code);
  };
  ran({"new", folder.string()}, 0);
  EXPECT_THAT(ran({"new", folder.string()}, 78), HasSubstr("name another"));
  ran({"init", "--preset", "tiny", "--out", (folder / "model").string(), "--set", "num_hidden_layers=1",
       "hidden_size=32", "intermediate_size=32"},
      0);
  const auto script = [&](const std::string& words, const std::string& environment = "") {
    const std::string line = environment + "TRIREME=" + std::string(std::getenv("TRIREME_BINARY")) +
                             " OMP_NUM_THREADS=1 " + (folder / "scripts/launch.sh").string() + words + " >" +
                             log.string() + " 2>&1";
    return WEXITSTATUS(std::system(line.c_str()));
  };
  EXPECT_EQ(script(" validate --steps 3 --matmul_seconds 0.01 --least_matmul_share 1"), 1)
      << testing::bytes_of(log);
  EXPECT_THAT(testing::bytes_of(log),
              AllOf(HasSubstr("pass  peak memory"), HasSubstr("pass  a sane loss"),
                    HasSubstr("pass  2 ranks equal one"), HasSubstr("FAIL  throughput: below"),
                    HasSubstr("Likely cause: ")));
  EXPECT_EQ(script(" --dry_run --sp 1 --output_dir runs/none", "RANKS=1 "), 0) << testing::bytes_of(log);
  EXPECT_THAT(testing::bytes_of(log), AllOf(HasSubstr("memory fits"), HasSubstr("not shown: time and loss")));
  EXPECT_FALSE(fs::exists(folder / "runs/none"));
  EXPECT_EQ(script(" --max_steps 3 --peak_tflops 1"), 0) << testing::bytes_of(log);
  EXPECT_THAT(testing::bytes_of(log),
              AllOf(HasSubstr("ulysses 2"), HasSubstr("ZeRO 3"), HasSubstr("step 3")));
  const RunDirectory run(folder / "runs/first");
  EXPECT_EQ(run.list().size(), 1U);
  const Json config = read_json(run.config());
  EXPECT_EQ(config["max_steps"], 3);
  EXPECT_EQ(config["max_grad_norm"], 1);
  EXPECT_EQ(config["train_file"], "data/text");
}

}  // namespace
}  // namespace trireme::new_project_process_test
