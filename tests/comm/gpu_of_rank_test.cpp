// Which GPU a rank takes, as a table of ways to start ranks.
#include "trireme/comm/gpu_of_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

struct Start {
  const char* how;
  int visible, local_rank, local_size, gpu;
};

TEST(ChooseGpu, serves_every_way_to_start_ranks) {
  const Start starts[] = {
      {"alone on a machine of 8", 8, 0, 1, 0},
      {"torchrun, trireme launch: first of 8", 8, 0, 8, 0},
      {"torchrun, trireme launch: last of 8", 8, 7, 8, 7},
      {"torchrun with fewer ranks than GPUs", 8, 3, 4, 3},
      {"srun --gpus-per-node=4, second task", 4, 1, 4, 1},
      {"srun --gpus-per-task=1, fourth task", 1, 3, 4, 0},
      {"srun --gpus-per-task=2, second of two tasks", 2, 1, 2, 1},
      {"mpirun with CUDA_VISIBLE_DEVICES for each process", 1, 5, 8, 0},
      {"a Kubernetes pod for each rank, with one GPU", 1, 0, 1, 0},
      {"a Kubernetes pod with 8 GPUs and 8 ranks", 8, 6, 8, 6},
      {"by hand, LOCAL_RANK alone: the size is taken to be one more", 4, 2, 3, 2},
  };
  for (const Start& start : starts)
    EXPECT_EQ(choose_gpu(start.visible, start.local_rank, start.local_size), start.gpu) << start.how;
}

TEST(ChooseGpu, refuses_several_gpus_for_more_ranks_on_each_of_them_and_says_what_it_saw) {
  for (const int local_rank : {0, 1, 3})
    EXPECT_THAT(message_of<ConfigError>([&] { choose_gpu(2, local_rank, 4); }),
                AllOf(HasSubstr(cat("local rank ", local_rank, " sees 2 GPUs")),
                      HasSubstr("this machine has 4 ranks"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CheckGpus, names_two_ranks_on_one_gpu) {
  const std::vector<std::optional<RankGpu>> of_ranks{
      RankGpu{"1a", "0000:3B:00.0", "node1"}, RankGpu{"1b", "0000:5E:00.0", "node1"},
      RankGpu{"2a", "0000:3B:00.0", "node2"}, RankGpu{"1b", "0000:5E:00.0", "pod-7"}};
  EXPECT_THAT(message_of<ConfigError>([&] { check_gpus(of_ranks); }),
              AllOf(HasSubstr("ranks 1 and 3 both compute on GPU 0000:5E:00.0 of pod-7"),
                    HasSubstr("LOCAL_RANK"), HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_NO_THROW(check_gpus(std::span(of_ranks).first(3)));
  EXPECT_NO_THROW(check_gpus({}));
}

TEST(CheckGpus, names_ranks_of_which_one_has_a_gpu_and_one_has_not) {
  const std::optional<RankGpu> gpu = RankGpu{"1a", "0000:3B:00.0", "node1"};
  const std::vector<std::optional<RankGpu>> last{gpu, std::nullopt}, first{std::nullopt, gpu},
      none{std::nullopt, std::nullopt};
  EXPECT_THAT(message_of<ConfigError>([&] { check_gpus(last); }),
              HasSubstr("rank 0 computes on a GPU and rank 1 on a CPU"));
  EXPECT_THAT(message_of<ConfigError>([&] { check_gpus(first); }),
              HasSubstr("rank 0 computes on a CPU and rank 1 on a GPU"));
  EXPECT_NO_THROW(check_gpus(none));
}

}  // namespace
}  // namespace trireme
