// The one file that turns options into stores and strategies.
#pragma once

#include <filesystem>
#include <memory>

#include "trireme/comm/world.h"
#include "trireme/engine/engine.h"

namespace trireme {

// Reads config.json and the weights of `model_dir` and builds the engine for this rank. Collective. Throws
// ConfigError for options that cannot be (P > heads, an axis that is not built), DataError for broken
// weights.
std::unique_ptr<Engine> assemble(World& world, const std::filesystem::path& model_dir,
                                 const EngineOptions& options,
                                 const ModelFamilies& families = model_families());

}  // namespace trireme
