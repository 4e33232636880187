// A family of models in one table: how its config.json is read, how its parameters lie, and its arithmetic.
// Nothing outside the family's own file (families/) asks which family a model is of. families/families.cpp
// lists all. What each part is given, writes and may overwrite: layer.h, embedding.h, head.h.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"
#include "trireme/model/model_layout.h"
#include "trireme/model/tile_formula.h"

namespace trireme {

class Embedding;
class Layer;
class LayerInputs;
class Head;
struct ColumnMixing;

// For the table: make_part<Layer, EncoderLayer>.
template <typename Base, typename OfFamily>
std::unique_ptr<Base> make_part(const ModelConfig& config) {
  return std::make_unique<OfFamily>(config);
}

struct ModelFamily {
  std::vector<std::string> model_types;  // of config.json
  // Close to these and not built: the type, and what the user can do.
  std::map<std::string, std::string> refused_types = {};
  std::string norm_eps_key;  // config.json's name of ModelConfig::norm_eps
  // ConfigError: what the file asks for and the family does not do.
  ModelConfig (*parse)(const ConfigKeys& keys) = nullptr;
  ModelLayout (*layout)(const ModelConfig& config) = nullptr;
  // The arithmetic, which may refer to `config` for as long as it lives.
  std::unique_ptr<Embedding> (*embedding)(const ModelConfig& config) = nullptr;
  // Null: no config has layer_input_width.
  std::unique_ptr<LayerInputs> (*layer_inputs)(const ModelConfig& config) = nullptr;
  std::unique_ptr<Layer> (*layer)(const ModelConfig& config) = nullptr;
  std::unique_ptr<Head> (*head)(const ModelConfig& config) = nullptr;
  TileFormula tiles = TileFormula::widest;
  const ColumnMixing* mixing = nullptr;  // of layers with a DeltaNet; null: no config has one
  // Slots of a layer whose matrices its arithmetic multiplies by adapted_linear.h, so that LoRA can adapt them.
  // Null: none.
  std::vector<size_t> (*adapted_slots)(const ModelConfig& config) = nullptr;
};

}  // namespace trireme
