// Flags of train that nothing reads beside the others. What a file gives is left alone: the config.json of a
// run has every option, and a file of another system its own habits.
#pragma once

#include "trireme/cli/option_parser.h"
#include "trireme/train/train_options.h"

namespace trireme {

// `parser` knows what was given as a flag. Throws ConfigError that names the flag and what would read it.
void refuse_unread_flags(const OptionParser& parser, const TrainOptions& options);

}  // namespace trireme
