// A model's folder where OUT itself cannot be renamed.
#include "trireme/cli/model_output.h"

#include <cerrno>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/failing_file.h"
#include "tests/support/file_bytes.h"
#include "tests/support/file_operations.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme::model_output_test {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::Pair;
using testing::TemporaryFolder;

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

// In a process of its own: root may write to every folder, and must be somebody else first.
int write_model_as_somebody(const fs::path& out) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(2);
    try {
      fs::create_directories(out / ".trireme.tmp-0123456789abcdef/left by a killed one");
      ModelOutput output(out, true);
      for (const char* name :
           {"config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"})
        write(output.path() / name, "new");
      if (bytes_of(out / "config.json") == "old") {
        output.publish();
        code = 0;
      }
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ModelOutput, in_a_parent_that_may_not_be_written_to_is_replaced_file_by_file) {
  const TemporaryFolder folder;
  const fs::path out = folder / "parent/out";
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    folder.write(fs::path("parent/out") / name, "old");
  folder.write("parent/out/notes.txt", "mine");
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(out.c_str(), 0777);
  ::chmod((folder / "parent").c_str(), 0555);
  EXPECT_EQ(write_model_as_somebody(out), 0);
  ::chmod((folder / "parent").c_str(), 0755);
  std::map<std::string, std::string> left;
  for (const auto& entry : fs::directory_iterator(out))
    left[entry.path().filename()] = bytes_of(entry.path());
  EXPECT_THAT(left, ElementsAre(Pair("config.json", "new"), Pair("model-00001-of-00001.safetensors", "new"),
                                Pair("model.safetensors.index.json", "new"), Pair("notes.txt", "mine")));
}

TEST(ModelOutput, is_synced_before_it_gets_its_name_and_then_the_folder_above_is) {
  const TemporaryFolder folder;
  ModelOutput output(folder / "out", false);
  write(output.path() / "config.json", "new");
  const std::string name = output.path().filename().string();
  const testing::FileOperations operations;
  output.publish();
  EXPECT_THAT(operations.in(folder.path().string()),
              ElementsAre("sync " + name, "rename " + name + " out", "sync ."));
}

// As a folder that another file system is mounted at.
TEST(ModelOutput, keeps_what_cannot_move_into_the_new_folder) {
  const TemporaryFolder folder;
  folder.write("out/config.json", "old");
  folder.write("out/data/mine.txt", "mine");
  ModelOutput output(folder / "out", true);
  write(output.path() / "config.json", "new");
  {
    const testing::FailingFile failing(testing::FileCall::rename, "/data", EBUSY);
    EXPECT_THAT(testing::message_of<Error>([&] { output.publish(); }),
                ::testing::AllOf(::testing::HasSubstr("data"), ::testing::HasSubstr("out.older")));
    EXPECT_TRUE(failing.reached());
  }
  EXPECT_EQ(bytes_of(folder / "out/config.json"), "new");
  EXPECT_EQ(bytes_of(folder / "out.older/data/mine.txt"), "mine");
}

TEST(ModelOutput, is_not_written_into_a_run_or_its_checkpoint) {
  const TemporaryFolder folder;
  folder.write("run/metrics.jsonl", "");
  folder.write("run/checkpoints/step-3/manifest.json", "{}");
  for (const char* out : {"run", "run/checkpoints/step-3"})
    EXPECT_THAT(testing::message_of<ConfigError>([&] { ModelOutput::check(folder / out, true); }),
                ::testing::HasSubstr("choose another folder"))
        << out;
}

TEST(ModelOutput, keeps_the_mode_of_the_folder_that_it_replaces) {
  const TemporaryFolder folder;
  folder.write("out/notes.txt", "mine");
  ::chmod((folder / "out").c_str(), 02700);
  ModelOutput output(folder / "out", true);
  write(output.path() / "config.json", "new");
  output.publish();
  EXPECT_EQ(fs::status(folder / "out").permissions(), fs::perms::owner_all | fs::perms::set_gid);
  EXPECT_EQ(bytes_of(folder / "out/notes.txt"), "mine");
}

// The shell would stand in a folder that is gone.
TEST(ModelOutput, into_the_working_folder_keeps_that_folder) {
  const TemporaryFolder folder;
  folder.write("out/notes.txt", "mine");
  const fs::path before = fs::current_path();
  fs::current_path(folder / "out");
  ModelOutput output(".", true);
  write(output.path() / "config.json", "new");
  output.publish();
  EXPECT_EQ(bytes_of("config.json"), "new");
  EXPECT_EQ(bytes_of("notes.txt"), "mine");
  fs::current_path(before);
}

TEST(ModelOutput, keeps_no_chat_template_of_the_older_model) {
  for (const bool is_working_folder : {false, true})
    for (const bool newer_has_some : {false, true}) {
      const TemporaryFolder folder;
      const fs::path templates = "additional_chat_templates", before = fs::current_path();
      folder.write("out/config.json", "old");
      folder.write("out" / templates / "rag.jinja", "old");
      if (is_working_folder) fs::current_path(folder / "out");
      ModelOutput output(folder / "out", true);
      write(output.path() / "config.json", "new");
      if (newer_has_some) {
        fs::create_directory(output.path() / templates);
        write(output.path() / templates / "tool_use.jinja", "new");
      }
      output.publish();
      fs::current_path(before);
      EXPECT_FALSE(fs::exists(folder / "out" / templates / "rag.jinja"));
      EXPECT_EQ(fs::exists(folder / "out" / templates / "tool_use.jinja"), newer_has_some);
    }
}

TEST(ModelOutput, what_a_killed_process_left_in_the_folder_does_not_count) {
  const TemporaryFolder folder;
  folder.write("out/.trireme.tmp-0123456789abcdef/config.json", "half");
  EXPECT_NO_THROW(ModelOutput::check(folder / "out", false));
}

}  // namespace
}  // namespace trireme::model_output_test
