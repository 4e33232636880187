// trireme train: trains a model; alone, or one rank of many under `trireme launch`, torchrun, Slurm or Open
// MPI. Exits 75 after a checkpoint when it was asked to stop (SIGTERM, SIGINT), so that a launcher may start
// it again.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/data_flags.h"
#include "trireme/cli/engine_flags.h"
#include "trireme/cli/update_flags.h"
#include "trireme/train/train_options.h"

namespace trireme {

struct TrainFlags {
  TrainOptions options;  // the flags that are options as they are
  std::string model;
  EngineFlags engine;
  UpdateFlags update;
  DataFlags data;
  bool gradient_checkpointing = false;
  double dropout = 0;
  std::string report_to = "tensorboard";

  void declare(OptionParser& parser);
  // After parse; the degrees of the engine need the world (EngineFlags::degrees). Throws ConfigError.
  TrainOptions resolve(const OptionParser& parser, const RankPlace& place) const;
};

int run_train(const std::vector<std::string>& arguments);

}  // namespace trireme
