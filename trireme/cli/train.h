// trireme train: trains a model; alone, or one rank of many under `trireme launch`, torchrun, Slurm or Open
// MPI. Exits 75 after a checkpoint when it was asked to stop (SIGTERM, SIGINT), so that a launcher may start
// it again.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_train(const std::vector<std::string>& arguments);

}  // namespace trireme
