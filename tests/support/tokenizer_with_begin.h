// A byte-level tokenizer that puts <|endoftext|> before each text, as Llama's puts <|begin_of_text|>.
#pragma once

#include <fstream>

#include "trireme/base/json.h"
#include "trireme/tokenizer/byte_level_tokenizer.h"
#include "trireme/tokenizer/tokenizer.h"

namespace trireme::testing {

inline Tokenizer tokenizer_with_begin(const std::filesystem::path& folder) {
  write_byte_level_tokenizer(folder);
  const std::filesystem::path file = folder / "tokenizer.json";
  Json json = read_json(file);
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>":
      {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}}})");
  std::ofstream(file) << json;
  return Tokenizer::load(file);
}

}  // namespace trireme::testing
