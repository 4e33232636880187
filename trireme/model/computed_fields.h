// What of a model's config.json decides its numbers, whatever the file leaves to defaults or says elsewhere.
#pragma once

#include "trireme/model/model_config.h"

namespace trireme {

// Under the names of config.json, every one with its value as parsed.
Json computed_fields(const ModelConfig& config);

}  // namespace trireme
