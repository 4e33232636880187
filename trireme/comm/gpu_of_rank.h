// Which GPU a rank computes on, by what its process sees, and whether the ranks of the run have chosen well.
//
//   torchrun, trireme launch, srun --gpus-per-node, mpirun   every process sees the machine's GPUs: its local rank's
//   srun --gpus-per-task=1, a Kubernetes pod with one GPU,
//   CUDA_VISIBLE_DEVICES=k for each process                  every process sees one GPU: that one
//
// No CUDA here: the caller counts the devices and asks for their names.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace trireme {

// Index of the GPU of the rank `local_rank` of `local_size` on its machine, of `visible` (1 or more) that its process
// sees. Throws ConfigError where several are visible, but not one for each rank: no rule would be right for all ranks.
int choose_gpu(int visible, int local_rank, int local_size);

// What a rank tells the others of its GPU.
struct RankGpu {
  std::string uuid;  // no two GPUs have the same, whatever machine or container sees them
  std::string bus;   // PCI address on its machine, for people: "0000:3B:00.0"
  std::string host;  // the machine's name, for people
};

// Throws ConfigError that names two ranks which compute on one GPU, or one on a GPU and one on a CPU; `of_ranks[r]` is rank
// r's, nothing where it computes on the CPU. NCCL refuses the first with an error that names no rank, or waits, when
// their containers differ; of the second each would wait for the other.
void check_gpus(std::span<const std::optional<RankGpu>> of_ranks);

}  // namespace trireme
