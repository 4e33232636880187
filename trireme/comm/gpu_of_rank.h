// Which GPU a rank computes on, by what its process sees, and whether the ranks of the run have chosen well.
//
//   torchrun, trireme launch, srun --gpus-per-node, mpirun   every process sees the machine's GPUs: its local rank's
//   srun --gpus-per-task=1, a Kubernetes pod with one GPU,
//   CUDA_VISIBLE_DEVICES=k for each process                  every process sees one GPU: that one
//
// No CUDA here: the caller counts the devices and asks for their names.
#pragma once

#include <span>
#include <string>

namespace trireme {

// Index of the GPU of the rank `local_rank` of `local_size` on its machine, of `visible` (1 or more) that its process
// sees. Throws ConfigError where several are visible, but not one for each rank: no rule would be right for all ranks.
int choose_gpu(int visible, int local_rank, int local_size);

// What a rank tells the others of its GPU.
struct RankGpu {
  std::string machine;  // the same for processes of one running kernel, whatever their containers
  std::string host;     // its name, for people
  std::string bus;      // PCI address: "0000:3B:00.0"
};

// Throws ConfigError that names two ranks which compute on one GPU; `of_ranks[r]` is rank r's. NCCL refuses that with an
// error that names no rank, or waits, when their containers differ.
void refuse_shared_gpus(std::span<const RankGpu> of_ranks);

}  // namespace trireme
