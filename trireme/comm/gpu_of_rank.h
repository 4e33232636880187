// Chooses a rank's GPU among the GPUs that its process sees, and checks the choices of all ranks.
//
//   torchrun, trireme launch, srun --gpus-per-node, mpirun   every process sees all GPUs: its local rank's
//   srun --gpus-per-task=1, a Kubernetes pod with one GPU,
//   CUDA_VISIBLE_DEVICES=k for each process                  every process sees one GPU: that GPU
//
// This file does not use CUDA: the caller counts the devices and reads their names.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace trireme {

// The GPU index for rank `local_rank` of `local_size` on its machine, whose process sees `visible` GPUs (1 or
// more). Throws ConfigError if several GPUs are visible, but not one for each rank: no rule would be right
// for all ranks.
int choose_gpu(int visible, int local_rank, int local_size);

// What a rank tells the other ranks about its GPU.
struct RankGpu {
  std::string uuid;  // unique, whichever machine or container sees the GPU
  std::string bus;   // PCI address on its machine, for people: "0000:3B:00.0"
  std::string host;  // the machine's name, for people
};

// Throws ConfigError that names two ranks which compute on the same GPU, or one on a GPU and one on a CPU.
// `of_ranks[r]` is rank r's GPU, nullopt on the CPU. In the first case NCCL gives an error that names no
// rank, or waits if the containers of the ranks differ. In the second case the two ranks would wait for each
// other.
void check_gpus(std::span<const std::optional<RankGpu>> of_ranks);

}  // namespace trireme
