// Flags that nothing reads beside the others. What a file gives is left alone: the config.json of a run has
// every option, and a file of another system its own habits. All throw ConfigError that names the flag and
// what would read it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/train/train_options.h"

namespace trireme {

// If `unread`, throws where `flag` was given: "--FLAG means nothing READER, or leave it out".
void refuse_unread_flag(const OptionParser& parser, bool unread, const std::string& flag,
                        const std::string& reader);
// Flags that say how text is read. `text`: what the command reads, without tokenized sets.
void refuse_unread_text_flags(const OptionParser& parser, const std::vector<std::filesystem::path>& text);
// Flags of train.
void refuse_unread_flags(const OptionParser& parser, const TrainOptions& options);

}  // namespace trireme
