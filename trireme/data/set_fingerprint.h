// Which tokenizer made a tokenized set: PREFIX.set.json beside PREFIX.bin and PREFIX.idx.
//
//   {"format": 1, "tokenizer": "/models/llama/tokenizer.json", "tokenizer_sha256": "9f...",
//    "vocabulary_sha256": "3c...", "vocabulary": 128256, "end_of_text_appended": true, "documents": 1000,
//    "tokens": 123456, "prompt_tokens": 0, "largest_id": 128009}
//
// Training on a set from another tokenizer with as many ids would not fail, but its tokens would mean
// nothing. Sets of other programs have no such file and are accepted unchecked. Of chats it says how they are
// written, too (chat_format.h); a mix with sets of other programs has a file that says that alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {

struct SetCounts {
  int64_t documents = 0, tokens = 0, prompt_tokens = 0, largest_id = 0;
};

std::filesystem::path set_fingerprint_file(const std::filesystem::path& prefix);
// PREFIX where `file` is one of the three of a set whose .bin and .idx are there; nullopt for other files.
std::optional<std::filesystem::path> set_with_file(const std::filesystem::path& file);
// Of a set that this tokenizer.json made. Replaces an existing file. Throws DataError.
void write_set_fingerprint(const std::filesystem::path& prefix, const std::filesystem::path& tokenizer,
                           bool end_of_text_appended, const SetCounts& counts);

// Of sets that are mixed: the first one's fingerprint, whose tokenizer all of them have; nullopt where a set has
// none. Throws ConfigError where two say that their ids mean other tokens.
std::optional<Json> shared_fingerprint(const std::vector<std::filesystem::path>& prefixes);
// Writes one with these counts. Throws DataError.
void write_shared_fingerprint(const std::filesystem::path& prefix, Json fingerprint, const SetCounts& counts);

// If the set has a fingerprint, it must be that of as many documents, tokens and prompts' tokens. If it tells
// the tokenizer and `model_dir` has a tokenizer.json, the set's ids must mean the same tokens in both; the model
// may have more tokens, and the files may differ otherwise. `vocab_size`: above the set's largest id, where the
// file tells it; 0: not compared. Throws ConfigError that names both; DataError when a file is damaged or the
// set was changed since.
void check_set_fingerprint(const IndexedDataset& set, const std::filesystem::path& model_dir,
                           int64_t vocab_size = 0);

}  // namespace trireme
