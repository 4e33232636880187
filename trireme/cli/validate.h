// `trireme validate`: the checklist before a run, with the run's own flags.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/train.h"
#include "trireme/train/validate.h"

namespace trireme {

struct ValidateFlags {
  TrainFlags train;
  ValidateOptions how;
  bool json = false;

  void declare(OptionList& list);
};

// 0: no check failed; 1: one did.
int run_validate(const std::vector<std::string>& arguments);

}  // namespace trireme
