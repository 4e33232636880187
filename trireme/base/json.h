// JSON files, with errors that name the file and the place.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace trireme {

using Json = nlohmann::json;

// Reads and parses a file. Throws DataError: missing, or not JSON (file, line and column).
Json read_json(const std::filesystem::path& file);

// Parses text; `origin` is named in the DataError.
Json parse_json(const std::string& text, const std::string& origin);

}  // namespace trireme
