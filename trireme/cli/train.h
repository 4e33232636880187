// trireme train: trains a model; alone, or one rank of many under `trireme launch`, torchrun, Slurm or Open
// MPI. Exits 75 after a checkpoint when it was asked to stop by a signal (base/stop_request.h), so that a
// launcher may start it again.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/config_files.h"
#include "trireme/cli/process_options.h"
#include "trireme/train/train_options.h"

namespace trireme {

struct TrainFlags {
  TrainOptions options;
  ProcessOptions process;
  ConfigFiles files;
  bool dry_run = false;

  void declare(OptionList& list);
  // Values of files beside those of flags, while `parser` parses: --config, --deepspeed, --continue_run,
  // stages. Returns lines for a person.
  std::vector<std::string> read_files(OptionParser& parser, int ranks);
  // After parse; the degrees of the engine need the world (ProcessOptions::share_sequence). Throws
  // ConfigError.
  TrainOptions resolve(const RankIdentity& identity) const;
};

int run_train(const std::vector<std::string>& arguments);

}  // namespace trireme
