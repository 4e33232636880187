// The identity of a process among the ranks, as each launcher's environment tells it.
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/slurm_lists.h"
#include "trireme/comm/world.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RankIdentityFromEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable)
      for (const char* of_launchers :
           {"RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TRIREME_", "TORCHELASTIC_", "SLURM_", "OMPI_"})
        if (std::string_view(*variable).starts_with(of_launchers))
          names.emplace_back(*variable, std::strcspn(*variable, "="));
    for (const std::string& name : names) unset(name);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) {
      remember(name);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  void unset(const std::string& name) {
    remember(name);
    unsetenv(name.c_str());
  }
  static std::string refusal() { return testing::message_of<ConfigError>(rank_identity_from_environment); }

 private:
  void remember(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    before_.emplace(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }
  std::map<std::string, std::optional<std::string>> before_;
};

const std::map<std::string, std::string> kTorchrun = {{"RANK", "5"},
                                                      {"WORLD_SIZE", "8"},
                                                      {"LOCAL_RANK", "1"},
                                                      {"LOCAL_WORLD_SIZE", "4"},
                                                      {"MASTER_ADDR", "node0"},
                                                      {"MASTER_PORT", "29400"}};

TEST_F(RankIdentityFromEnvironment, alone_is_a_world_of_one) {
  const RankIdentity identity = rank_identity_from_environment();
  EXPECT_EQ(identity.rank, 0);
  EXPECT_EQ(identity.size, 1);
}

TEST_F(RankIdentityFromEnvironment, of_torchrun) {
  set(kTorchrun);
  set({{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const RankIdentity identity = rank_identity_from_environment();
  EXPECT_EQ(identity.rank, 5);
  EXPECT_EQ(identity.size, 8);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.local_size, 4);
  EXPECT_EQ(identity.master_address, "node0");
  EXPECT_EQ(identity.master_port, 29400);
  EXPECT_EQ(identity.master_listen_fd, -1);
  EXPECT_TRUE(identity.agent_has_store);
  EXPECT_EQ(identity.attempt, "2");
}

TEST_F(RankIdentityFromEnvironment, of_a_kubernetes_pod_that_holds_one_rank) {
  set({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}});
  const RankIdentity identity = rank_identity_from_environment();
  EXPECT_EQ(identity.local_rank, 0);
  EXPECT_EQ(identity.local_size, 1);
  EXPECT_FALSE(identity.agent_has_store);
}

TEST_F(RankIdentityFromEnvironment, that_is_incomplete_names_the_missing_variable) {
  set({{"RANK", "0"}});
  EXPECT_THAT(refusal(), HasSubstr("WORLD_SIZE is not set"));
  set({{"WORLD_SIZE", "2"}});
  EXPECT_THAT(refusal(), HasSubstr("MASTER_ADDR is not set"));
  set({{"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_THAT(refusal(), HasSubstr("MASTER_PORT is not set"));
  unset("RANK");
  EXPECT_THAT(refusal(), HasSubstr("RANK is not set"));
}

TEST_F(RankIdentityFromEnvironment, that_contradicts_itself_names_both_variables) {
  set(kTorchrun);
  set({{"RANK", "8"}});
  EXPECT_THAT(refusal(), HasSubstr("RANK is 8, WORLD_SIZE is 8"));
  set({{"RANK", "1"}, {"LOCAL_RANK", "4"}});
  EXPECT_THAT(refusal(), HasSubstr("LOCAL_RANK is 4, LOCAL_WORLD_SIZE is 4"));
  set({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "16"}});
  EXPECT_THAT(refusal(), HasSubstr("LOCAL_WORLD_SIZE is 16, more than WORLD_SIZE"));
}

TEST_F(RankIdentityFromEnvironment, with_words_for_numbers_is_refused) {
  set(kTorchrun);
  set({{"RANK", "one"}});
  EXPECT_THAT(refusal(), HasSubstr("RANK is 'one'"));
  set({{"RANK", "-1"}});
  EXPECT_THAT(refusal(), HasSubstr("RANK is '-1'"));
  set({{"RANK", "1"}, {"MASTER_PORT", "70000"}});
  EXPECT_THAT(refusal(), HasSubstr("MASTER_PORT is 70000"));
}

const std::map<std::string, std::string> kSlurm = {{"SLURM_STEP_ID", "0"},
                                                   {"SLURM_PROCID", "5"},
                                                   {"SLURM_NTASKS", "7"},
                                                   {"SLURM_LOCALID", "1"},
                                                   {"SLURM_NODEID", "2"},
                                                   {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                                                   {"SLURM_JOB_NODELIST", "gpu[07-09,12]"},
                                                   {"MASTER_PORT", "20001"}};

TEST_F(RankIdentityFromEnvironment, of_slurm_meets_on_the_first_node) {
  set(kSlurm);
  const RankIdentity identity = rank_identity_from_environment();
  EXPECT_EQ(identity.rank, 5);
  EXPECT_EQ(identity.size, 7);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.local_size, 2);
  EXPECT_EQ(identity.master_address, "gpu07");
  EXPECT_EQ(identity.master_port, 20001);
}

TEST_F(RankIdentityFromEnvironment, of_a_slurm_batch_script_is_alone) {
  set(kSlurm);
  unset("SLURM_STEP_ID");
  EXPECT_EQ(rank_identity_from_environment().size, 1);
}

TEST_F(RankIdentityFromEnvironment, of_slurm_without_a_port_asks_for_one) {
  set(kSlurm);
  unset("MASTER_PORT");
  EXPECT_THAT(refusal(), HasSubstr("MASTER_PORT is not set"));
  set({{"MASTER_PORT", "20001"}, {"SLURM_NODEID", "4"}});
  EXPECT_THAT(refusal(), HasSubstr("SLURM_NODEID is 4"));
}

TEST_F(RankIdentityFromEnvironment, of_openmpi_and_it_counts_before_the_slurm_step_that_carries_it) {
  set(kSlurm);
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const RankIdentity identity = rank_identity_from_environment();
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.size, 2);
  EXPECT_EQ(identity.master_address, "127.0.0.1");
  set({{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  EXPECT_THAT(refusal(), HasSubstr("MASTER_ADDR is not set"));
}

TEST_F(RankIdentityFromEnvironment, has_a_secret_derived_from_the_launcher_alone_that_gave_it) {
  set(kSlurm);
  set({{"SLURM_JOB_ID", "77"}});
  const RunSecret of_step_0 = rank_identity_from_environment().secret;
  EXPECT_TRUE(of_step_0.guessable);
  set({{"SLURM_STEP_ID", "1"}});
  EXPECT_NE(rank_identity_from_environment().secret.bytes, of_step_0.bytes);
  // mpirun of a batch script, and ranks numbered by hand: each machine has another step, or none.
  const std::map<std::string, std::string> of_mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                                                     {"OMPI_COMM_WORLD_SIZE", "2"},
                                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  set(of_mpirun);
  EXPECT_EQ(rank_identity_from_environment().secret.origin, "no secret");
  set(kTorchrun);
  EXPECT_EQ(rank_identity_from_environment().secret.origin, "no secret");
  set({{"TORCHELASTIC_RUN_ID", "run-7"}});
  const RunSecret of_run_7 = rank_identity_from_environment().secret;
  EXPECT_EQ(of_run_7.origin, "TORCHELASTIC_RUN_ID");
  EXPECT_TRUE(of_run_7.guessable);
  set({{"TRIREME_SECRET", "00112233445566778899aabbccddee5a"}});
  EXPECT_EQ(rank_identity_from_environment().secret.origin, "TRIREME_SECRET");
}

TEST(SlurmLists, are_read_as_slurm_writes_them) {
  EXPECT_THAT(slurm_tasks_per_node("8"), ElementsAre(8));
  EXPECT_THAT(slurm_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THROW(slurm_tasks_per_node("2(x"), ConfigError);
  EXPECT_THROW(slurm_tasks_per_node(""), ConfigError);
  EXPECT_EQ(slurm_first_host("login1"), "login1");
  EXPECT_EQ(slurm_first_host("a,b[1-3]"), "a");
  EXPECT_EQ(slurm_first_host("gpu[007-019]"), "gpu007");
  EXPECT_EQ(slurm_first_host("r1n[3,5]-ib,r2n[1-2]-ib"), "r1n3-ib");
  EXPECT_THROW(slurm_first_host("[1-2"), ConfigError);
}

}  // namespace
}  // namespace trireme
