// --config FILE (our own option names; a run's config.json replays that run) and --deepspeed FILE: what they
// give the options that no flag gives. A flag beats --config; what contradicts a DeepSpeed file is refused.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"

namespace trireme {

struct ConfigFiles {
  std::filesystem::path config, deepspeed, deepspeed_config;
  bool batch_follows = false;  // add_to found a train_batch_size, and divided it for the ranks as known then

  void list(OptionList& list);
  // Within OptionParser::parse: reads the files, adds their values, and lets the batch follow from the ranks
  // of the run. Returns lines for the user. Throws ConfigError, DataError.
  std::vector<std::string> add_to(OptionParser& parser, int ranks);
};

// The list of stages where --context_stages names its file, which a run's config.json is to hold; else
// `context_stages`. Throws ConfigError: the file holds something else.
std::string list_of_stages(const std::string& context_stages);

// Whether a DeepSpeed configuration has a key or a block of that name at its top.
bool is_deepspeed_name(const std::string& name);

// The values of a --config document as options, by their names, but for those that a given flag displaces
// (--sp ulysses and ring) or leaves without a meaning (another schedule its kwargs).
std::vector<GivenValue> values_of_config(const Json& document, const std::string& file,
                                         const OptionParser& parser);

}  // namespace trireme
