// What a LoraConfig trains of a model, found by the names of its modules:
//
//   ModelLayout::units                  Adapters::units
//   embedding                           embed_tokens, where it is trained whole
//   layer.0    q|k|v [n, k]     ->      A of q and v [2r, k], B of q [n_q, r], B of v [n_v, r]
//              input_layernorm  ->      input_layernorm, where it is trained whole
//   ...
//   head                                norm, lm_head, where they are
#pragma once

#include <string>
#include <vector>

#include "trireme/model/lora.h"
#include "trireme/model/model_config.h"

namespace trireme {

// Who named them: flags or a file, for errors.
struct OriginOfModules {
  std::string targets, modules_to_save;
};
// Throws ConfigError for a module that the model does not have, or of which this is not built.
Adapters make_adapters(const ModelConfig& config, const ModelLayout& layout, const LoraConfig& lora,
                       const OriginOfModules& origin);

// The last names of the modules that have LoRA's matrices, in any layer: "q_proj", "k_proj", ...
std::vector<std::string> adapted_modules(const Adapters& adapters);

}  // namespace trireme
