// Training over two machines by one command: both are this one, under two of its names. A rank that is killed
// on either is not seen in the loss curve.
#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/train/run_directory.h"

#include "tests/cli/program.h"
#include "tests/cli/run_words.h"
#include "tests/train/tiny_run.h"

namespace trireme::several_hosts_process_test {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::joined;
using testing::Program;
using testing::tensors_of;
using testing::Words;

class OnTwoHosts : public ::testing::Test {
 protected:
  Words train(const std::string& name) const {
    return joined({testing::train_words(run_, folder(name)),
                   {"--ulysses", "2", "--max_steps", "200", "--save_steps", "20", "--ddp_timeout",
                    testing::kLongerThanHangs_seconds}});
  }
  std::filesystem::path folder(const std::string& name) const { return run_.folder() / name; }
  // Each step's loss, as it was reported last.
  std::map<int64_t, std::string> losses(const std::string& name) const {
    std::map<int64_t, std::string> all;
    std::ifstream in(RunDirectory(folder(name)).metrics());
    for (std::string line; std::getline(in, line);) {
      const Json record = Json::parse(line, nullptr, false);
      if (record.is_object() && record.contains("loss")) all[record["step"]] = record["loss"].dump();
    }
    return all;
  }

  testing::TinyRun run_;
};

TEST_F(OnTwoHosts, a_run_whose_rank_is_killed_goes_on_from_its_checkpoint_to_the_same_bits) {
  std::ofstream(folder("hosts")) << "localhost slots=1\n127.0.0.1 slots=1\n";
  Program program(joined({{"launch", "--hostfile", folder("hosts").string(), "--max_restarts", "2"},
                          {"--grace_seconds", "1", "--"},
                          train("killed")}),
                  folder("killed.log"));
  ASSERT_TRUE(eventually([&] { return !RunDirectory(folder("killed")).list().empty(); })) << program.output();
  const auto launchers = program.children();
  ASSERT_EQ(launchers.size(), 2U) << program.output();
  const auto ranks = testing::children_of(launchers[1]);
  ASSERT_EQ(ranks.size(), 1U) << program.output();
  ::kill(ranks[0], SIGKILL);
  EXPECT_EQ(program.wait(), 0) << program.output();
  EXPECT_THAT(program.output(),
              AllOf(HasSubstr("rank 1 (process " + std::to_string(ranks[0])), HasSubstr("killed by signal 9"),
                    HasSubstr("(restart 1 of 2)"), HasSubstr("resumed at step ")));

  Program whole(joined({{"launch", "--nproc_per_node", "2", "--"}, train("whole")}), folder("whole.log"));
  ASSERT_EQ(whole.wait(), 0) << whole.output();
  EXPECT_EQ(losses("killed"), losses("whole"));
  EXPECT_EQ(losses("whole").size(), 200U);
  EXPECT_EQ(tensors_of(RunDirectory(folder("killed")).checkpoint(200)),
            tensors_of(RunDirectory(folder("whole")).checkpoint(200)));
}

}  // namespace
}  // namespace trireme::several_hosts_process_test
