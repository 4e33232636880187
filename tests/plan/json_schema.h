// JSON held against a JSON Schema (draft 2020-12), of whose keywords those are read that docs/schemas uses;
// any other fails the test.
#pragma once

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"

namespace trireme::testing {

class JsonSchema {
 public:
  explicit JsonSchema(const std::filesystem::path& file) : root_(read_json(file)) {}

  // What is wrong, each as "/best/memory/fits: ..."; empty: nothing.
  std::vector<std::string> faults(const Json& value) const {
    std::vector<std::string> found;
    look(root_, value, "", found);
    return found;
  }

 private:
  static bool is_of(const std::string& type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    return type == "null" && value.is_null();
  }

  void look(const Json& schema, const Json& value, const std::string& path,
            std::vector<std::string>& found) const {
    static const std::set<std::string> known{
        "$schema", "$defs", "$ref",     "title",      "description",          "type",
        "enum",    "const", "required", "properties", "additionalProperties", "items",
        "anyOf"};
    for (const auto& [keyword, of_schema] : schema.items())
      if (!known.contains(keyword))
        ADD_FAILURE() << "the schema has the keyword " << keyword << ", which this checker does not read";
    const auto fault = [&](const std::string& what) {
      found.push_back(path + ": " + what + ", got " + value.dump().substr(0, 80));
    };
    if (schema.contains("$ref"))
      look(root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), value, path, found);
    if (schema.contains("type")) {
      const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      if (std::ranges::none_of(types, [&](const Json& type) { return is_of(type, value); }))
        fault("expected " + types.dump());
    }
    if (schema.contains("const") && value != schema["const"]) fault("expected " + schema["const"].dump());
    if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end())
      fault("expected one of " + schema["enum"].dump());
    if (schema.contains("anyOf") && std::ranges::none_of(schema["anyOf"], [&](const Json& each) {
          std::vector<std::string> its;
          look(each, value, path, its);
          return its.empty();
        }))
      fault("expected any of " + schema["anyOf"].dump().substr(0, 80));
    if (value.is_object()) {
      for (const Json& name : schema.value("required", Json::array()))
        if (!value.contains(name.get<std::string>())) fault("lacks " + name.get<std::string>());
      const Json properties = schema.value("properties", Json::object()),
                 more = schema.value("additionalProperties", Json(true));
      for (const auto& [name, each] : value.items()) {
        if (properties.contains(name))
          look(properties[name], each, cat(path, "/", name), found);
        else if (more == false)
          found.push_back(cat(path, "/", name, ": is not in the schema"));
        else if (more.is_object())
          look(more, each, cat(path, "/", name), found);
      }
    }
    if (value.is_array() && schema.contains("items"))
      for (size_t i = 0; i < value.size(); ++i)
        look(schema["items"], value[i], path + "/" + std::to_string(i), found);
  }

  Json root_;
};

}  // namespace trireme::testing
