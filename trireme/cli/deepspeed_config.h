// A DeepSpeed configuration file as options of train, by the table of deepspeed_keys.h. "auto" takes the flag
// or the option's default, as with the Hugging Face Trainer; so does a key that is absent.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/batch_arithmetic.h"
#include "trireme/cli/option_parser.h"

namespace trireme {

struct DeepSpeedConfig {
  std::vector<GivenValue> values;
  std::vector<GivenValue> defaults;  // what counts less than a flag: DeepSpeed's defaults, steps_per_print
  std::optional<BatchNumber> train_batch;
  // Reason -> keys of the file that mean nothing for Trireme.
  std::map<std::string, std::vector<std::string>> without_meaning;
};

// Throws ConfigError with the path of the key: unknown (with the nearest known one), of a wrong type,
// refused.
DeepSpeedConfig read_deepspeed_config(const Json& document, const std::string& file);

// A line for each reason.
std::vector<std::string> notes_of(const DeepSpeedConfig& config, const std::string& file);

}  // namespace trireme
