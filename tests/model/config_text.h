// config.json as text, for tests of what is read from it.
#pragma once

#include <string>

#include "trireme/base/error.h"
#include "trireme/model/model_config.h"

#include "tests/support/error_message.h"

namespace trireme::config_test {

inline ModelConfig parse(const std::string& text) {
  return parse_model_config(parse_json(text, "test"), "config.json");
}

inline std::string refusal(const std::string& text) {
  return testing::message_of<ConfigError>([&] { parse(text); });
}

// A small model of a family with more keys.
inline std::string small(const std::string& family, const std::string& more = "") {
  return R"({"model_type":")" + family +
         R"(","hidden_size":64,"intermediate_size":96,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,)" +
         R"("num_hidden_layers":4,"max_position_embeddings":256)" + (more.empty() ? "" : "," + more) + "}";
}

}  // namespace trireme::config_test
