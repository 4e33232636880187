// The tokens of tokenizer.json's "model" as the file writes them, and their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "trireme/base/json.h"

namespace trireme {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

using Vocabulary = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// `model`'s "vocab". Throws DataError for an id that is no whole number from 0 on.
Vocabulary read_vocabulary(const Json& model, const std::string& origin);

}  // namespace trireme
