// What a run is told beside the defaults, and by what: the short form of its config.json, printed at its
// start.
#pragma once

#include <string>

#include "trireme/cli/option_parser.h"
#include "trireme/train/train_options.h"

namespace trireme {

// A line for each option that differs from its default; `parser` knows which were given. Empty: none does.
std::string changed_options_text(const OptionParser& parser, const TrainOptions& resolved);

}  // namespace trireme
