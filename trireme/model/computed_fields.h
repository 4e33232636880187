// What of a model's config.json decides its numbers, whatever the file leaves to defaults or says elsewhere.
#pragma once

#include <optional>

#include "trireme/base/field_differences.h"
#include "trireme/model/model_config.h"

namespace trireme {

// Under the names of config.json, every one with its value as parsed.
Json computed_fields(const ModelConfig& config);

// A field in which two models differ, but for their positions (rope and max_position_embeddings), which a run
// may stretch.
std::optional<FieldDifference> difference_beside_positions(const ModelConfig& first,
                                                           const ModelConfig& second);

}  // namespace trireme
