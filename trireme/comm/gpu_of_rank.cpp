#include "trireme/comm/gpu_of_rank.h"

#include <map>

#include "trireme/base/error.h"

namespace trireme {

int choose_gpu(int visible, int local_rank, int local_size) {
  TRIREME_ASSERT(visible >= 1 && local_rank >= 0 && local_rank < local_size, visible, " GPUs, local rank ",
                 local_rank, " of ", local_size);
  if (visible == 1) return 0;
  if (visible >= local_size) return local_rank;
  throw ConfigError(cat("local rank ", local_rank, " sees ", visible, " GPUs, and this machine has ",
                        local_size, " ranks: start at most ", visible,
                        " here, or let each process see one GPU of its own (srun --gpus-per-task=1, "
                        "CUDA_VISIBLE_DEVICES)"));
}

void check_gpus(std::span<const std::optional<RankGpu>> of_ranks) {
  std::map<std::string, size_t> user;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].has_value() != of_ranks.front().has_value())
      throw ConfigError(cat("rank 0 computes on a ", of_ranks.front() ? "GPU" : "CPU", " and rank ", rank,
                            " on a ", of_ranks[rank] ? "GPU" : "CPU",
                            ": say --device cuda to see why a rank finds no GPU, or "
                            "--device cpu for all"));
    if (!of_ranks[rank]) continue;
    const RankGpu& gpu = *of_ranks[rank];
    const auto [known, added] = user.emplace(gpu.uuid, rank);
    if (added) continue;
    throw ConfigError(
        cat("ranks ", known->second, " and ", rank, " both compute on GPU ", gpu.bus, " of ", gpu.host,
            ", and NCCL needs one for each rank: set LOCAL_RANK and LOCAL_WORLD_SIZE for ranks that "
            "are started by hand, or let each process see a GPU of its own (CUDA_VISIBLE_DEVICES); "
            "ranks that share a GPU can be threads of one process (--ranks_as_threads)"));
  }
}

}  // namespace trireme
