// In which fields two JSON objects differ.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

// Null: the object has no such field.
struct FieldDifference {
  std::string field;
  Json first, second;
};

// In the order of names.
inline std::vector<FieldDifference> field_differences(const Json& first, const Json& second) {
  Json names = first;
  names.update(second);
  std::vector<FieldDifference> differences;
  for (const auto& [name, unused] : names.items()) {
    FieldDifference field{name, first.value(name, Json()), second.value(name, Json())};
    if (field.first != field.second) differences.push_back(std::move(field));
  }
  return differences;
}

}  // namespace trireme
