// Ranks that were told different things, or that find different models, end together and say where.
#include "trireme/train/compare_ranks.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::compare_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TinyRun;

class CompareRanks : public ::testing::Test {
 protected:
  // What each of four ranks is told, when `change` made the options of a rank.
  std::vector<std::string> told(const std::function<void(TrainOptions&, int rank)>& change) const {
    std::vector<std::string> messages(4);
    run_ranks_as_threads(4, [&](World& world) {
      const int rank = world.rank();
      const auto group = world.make_group("all", {{0, 1, 2, 3}});
      Agreement agreement(*group, at::kCPU);
      TrainOptions options = run_.options("run");
      change(options, rank);
      try {
        compare_ranks(options, rank, agreement);
      } catch (const Error& error) {
        messages[static_cast<size_t>(rank)] = error.what();
        kinds_[static_cast<size_t>(rank)] = error.exit_code();
      }
    });
    return messages;
  }
  // A copy of the model, for a machine that has its own.
  fs::path other_model() const {
    fs::path other = run_.folder() / "other";
    fs::copy(run_.model(), other);
    return other;
  }

  mutable std::vector<int> kinds_ = std::vector<int>(4);
  TinyRun run_;
};

TEST_F(CompareRanks, alike_go_on) {
  EXPECT_THAT(told([](TrainOptions&, int) {}), Each(""));
}

TEST_F(CompareRanks, may_differ_in_paths_and_in_what_is_of_a_machine) {
  const fs::path other = other_model();
  EXPECT_THAT(told([&](TrainOptions& options, int rank) {
                if (rank != 2) return;
                options.model_dir = other;
                options.output_dir = "elsewhere";
                options.engine.offload.folder = "/scratch";
                options.engine.memory_budget_bytes = 1 << 30;
                options.peak_tflops = 7;
              }),
              Each(""));
}

TEST_F(CompareRanks, with_another_option_end_together_and_name_it_with_its_values) {
  const auto messages =
      told([](TrainOptions& options, int rank) { options.learning_rate = rank == 3 ? 2e-4 : 1e-4; });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("differ in their options"),
                                   HasSubstr("learning_rate is 0.0001 on rank 0 and 0.0002 on rank 3"),
                                   Not(HasSubstr("seed")), Not(HasSubstr("more of the ranks")))));
  EXPECT_THAT(kinds_, Each(78));
}

TEST_F(CompareRanks, of_which_several_differ_count_them) {
  const auto messages = told([](TrainOptions& options, int rank) { options.save_steps = rank == 0 ? 5 : 6; });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("save_steps is 5 on rank 0 and 6 on rank 1"),
                                   HasSubstr("and 2 more of the ranks differ from rank 0"))));
}

TEST_F(CompareRanks, with_another_config_json_name_its_field) {
  const fs::path other = other_model();
  Json config = read_json(other / "config.json");
  config["rope_theta"] = 5e5;
  std::ofstream(other / "config.json") << config;
  const auto messages = told([&](TrainOptions& options, int rank) {
    if (rank == 1) options.model_dir = other;
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("config.json"), HasSubstr("rope_theta is 10000.0 on rank 0"),
                                   HasSubstr("500000.0 on rank 1"))));
}

// Another fine-tuning of the same model has the same files of the same sizes.
TEST_F(CompareRanks, with_other_weights_of_the_same_shapes_name_the_file) {
  const fs::path other = run_.folder() / "other";
  testing::write_tiny_model(other, testing::tiny_llama_config(), 0.2);
  const auto messages = told([&](TrainOptions& options, int rank) {
    if (rank == 1) options.model_dir = other;
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("the weights of their model"), HasSubstr("model.safetensors is"),
                                   HasSubstr("on rank 1"))));
}

TEST_F(CompareRanks, with_another_adapter_name_what_differs) {
  const auto write = [&](const char* name, double alpha, double spread) {
    testing::write_tiny_adapter(run_.model(), run_.folder() / name,
                                {.rank = 2, .alpha = alpha, .targets = {"q_proj"}}, spread);
    return run_.folder() / name;
  };
  const fs::path adapter = write("adapter", 4, 0.1), scaled = write("scaled", 8, 0.1),
                 other = write("other", 4, 0.2);
  const auto with = [&](const fs::path& of_rank_1) {
    return told([&](TrainOptions& options, int rank) {
      options.engine.lora.adapter = rank == 1 ? of_rank_1 : adapter;
    });
  };
  EXPECT_THAT(with(adapter), Each(""));
  EXPECT_THAT(with(scaled),
              Each(AllOf(HasSubstr("their adapter"), HasSubstr("scale 2"), HasSubstr("scale 4"))));
  EXPECT_THAT(with(other),
              Each(AllOf(HasSubstr("their adapter"), HasSubstr("adapter_model.safetensors is"))));
  EXPECT_THAT(with(""),
              Each(AllOf(HasSubstr("their adapter"), HasSubstr("on rank 0 and \"none\" on rank 1"))));
}

TEST_F(CompareRanks, without_a_model_on_one_of_them_end_together) {
  const auto messages = told([&](TrainOptions& options, int rank) {
    if (rank == 2) options.model_dir = run_.folder() / "nowhere";
  });
  for (const size_t rank : {0, 1, 3})
    EXPECT_THAT(messages[rank], HasSubstr("rank 2 failed while reading the model"));
  EXPECT_THAT(messages[2], HasSubstr("nowhere"));
  EXPECT_THAT(kinds_, Each(kinds_[0])) << "alike";
}

}  // namespace
}  // namespace trireme::compare_ranks_test
