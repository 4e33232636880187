// `trireme info`: versions, devices, transports and kernels in use, of this build and machine.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"

namespace trireme {

struct InfoFlags {
  bool json = false, measure = true;

  void declare(OptionList& list);
};

int run_info(const std::vector<std::string>& arguments);

}  // namespace trireme
