// A configuration file as one JSON object: JSON, or YAML where the name ends in .yaml or .yml. Of YAML what
// JSON has: maps, lists and scalars; anchors, aliases and tags are refused. Equal keys are refused in both.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/base/json.h"

namespace trireme {

struct ConfigDocument {
  std::string text;
  Json json;
};

// By its name.
bool is_yaml(const std::filesystem::path& file);

// Throws DataError with file, line and column, also where it holds no object.
ConfigDocument read_config_document(const std::filesystem::path& file);
// The same of any JSON.
ConfigDocument read_document(const std::filesystem::path& file);

// `origin` is named in the DataError. yaml_document.cpp.
Json parse_yaml(const std::string& text, const std::string& origin);

}  // namespace trireme
