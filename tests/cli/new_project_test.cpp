// The folders that `trireme new` makes: each file is used, and none contradicts another.
#include "trireme/cli/new_project.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/config.h"
#include "trireme/cli/train.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme::new_project_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

class NewProject : public ::testing::TestWithParam<ProjectVariant> {
 protected:
  fs::path folder() const { return folder_.path() / "run"; }
  testing::TemporaryFolder folder_;
};

TEST(NewProjectTree, is_that_of_guides) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(
      write_project(folder.path() / "n", ProjectVariant::native),
      ElementsAre("data/text/sample.txt", "ds_config.json", "train.yaml", "README.md", "scripts/launch.sh"));
  EXPECT_THAT(write_project(folder.path() / "t", ProjectVariant::transformers),
              ElementsAre("data/text/sample.txt", "ds_config.json", "train.yaml", "README.md",
                          "data/long_context_collator.py", "scripts/launch.sh", "train.py"));
}

TEST_P(NewProject, names_each_of_its_files_in_the_readme_and_can_run_its_scripts) {
  const auto written = write_project(folder(), GetParam());
  const std::string readme = testing::bytes_of(folder() / "README.md");
  for (const std::string& path : written) {
    const std::string named = path.starts_with("data/text/") ? "data/text/" : path;
    if (path != "README.md") {
      EXPECT_THAT(readme, HasSubstr("`" + named + "`"));
    }
    const bool runs = (fs::status(folder() / path).permissions() & fs::perms::owner_exec) != fs::perms::none;
    EXPECT_EQ(runs, path.ends_with(".sh")) << path;
  }
}

TEST_P(NewProject, has_files_that_train_and_config_read_and_that_do_not_contradict_each_other) {
  write_project(folder(), GetParam());
  const std::string config = (folder() / "train.yaml").string(), ds = (folder() / "ds_config.json").string();
  Declared<TrainFlags> train("train");
  EXPECT_TRUE(train.parser.parse({"--config", config, "--deepspeed", ds}, [&] {
    EXPECT_THAT(train.flags.files.add_to(train.parser, 4), ElementsAre()) << "keys without meaning";
  }));
  EXPECT_EQ(train.flags.options.train_file, "data/text");
  EXPECT_EQ(train.flags.options.gradient_accumulation_steps, 4);
  EXPECT_EQ(mend_deepspeed_text(testing::bytes_of(ds), ds, 32).changes, std::vector<std::string>{});
  const auto shown = [](const std::string& file) {
    return testing::stdout_of([&] { return run_config({"show", file}); });
  };
  EXPECT_THAT(shown(config), AllOf(HasSubstr("--max_seq_length 256"), HasSubstr("train.yaml: sp")));
  EXPECT_THAT(shown(ds), AllOf(HasSubstr("--zero 3"), HasSubstr("--bf16 true")));
}

TEST_P(NewProject, replaces_nothing) {
  fs::create_directories(folder());
  write_project(folder(), GetParam());  // an empty folder will do
  const std::string before = testing::bytes_of(folder() / "train.yaml");
  std::ofstream(folder() / "train.yaml", std::ios::app) << "# mine\n";
  EXPECT_THAT(message_of<ConfigError>([&] { write_project(folder(), GetParam()); }),
              HasSubstr("no empty folder"));
  EXPECT_EQ(testing::bytes_of(folder() / "train.yaml"), before + "# mine\n");
  EXPECT_THAT(message_of<ConfigError>([&] { write_project(folder() / "train.yaml", GetParam()); }),
              HasSubstr("no empty folder"));
  EXPECT_THAT(message_of<ConfigError>([] { run_new({"--variant", "native"}); }), HasSubstr("usage:"));
}

INSTANTIATE_TEST_SUITE_P(Variants, NewProject,
                         ::testing::Values(ProjectVariant::native, ProjectVariant::transformers),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trireme::new_project_test
