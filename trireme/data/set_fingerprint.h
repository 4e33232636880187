// Which tokenizer made a tokenized set: PREFIX.set.json beside PREFIX.bin and PREFIX.idx.
//
//   {"format": 1, "tokenizer": "/models/llama/tokenizer.json", "tokenizer_sha256": "9f...", "vocabulary_sha256": "3c...",
//    "vocabulary": 128256, "end_of_text_appended": true, "documents": 1000, "tokens": 123456}
//
// A set of the same number of ids made with another tokenizer would train in silence on tokens that mean nothing. Sets of other
// programs have no such file, and are taken as they are.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme {

struct SetOrigin {
  std::filesystem::path tokenizer;  // the tokenizer.json
  bool end_of_text_appended = true;
  int64_t documents = 0;
  int64_t tokens = 0;
};

std::filesystem::path set_fingerprint_file(const std::filesystem::path& prefix);
// Replaces one that is there. Throws DataError.
void write_set_fingerprint(const std::filesystem::path& prefix, const SetOrigin& origin);

// Where a set has a fingerprint and `model_dir` a tokenizer.json, the ids that the set may hold must mean the same tokens; the
// model may have more tokens, and the files may differ in all else. Throws ConfigError that names both; DataError when a file is
// damaged.
void check_set_fingerprint(const std::filesystem::path& prefix, const std::filesystem::path& model_dir);

}  // namespace trireme
