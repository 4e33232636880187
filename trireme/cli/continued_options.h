// What --continue_run takes over from the finished run where no flag or file says otherwise: its options, but
// those of its stages, folders and checkpoints.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"

namespace trireme {

// `run`: the run's folder, or one of its checkpoints. Not given, --output_dir is that folder with
// "-continued". Returns lines to tell. Throws ConfigError: no checkpoint, no number of steps, another model or
// other adapters beside it.
std::vector<std::string> add_continued_options(OptionParser& parser, const std::filesystem::path& run);

}  // namespace trireme
