// The tokens that a tokenizer.json of any kind lists, read without building a tokenizer. And whether a model
// has rows in its embedding for all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>

namespace trireme {

inline constexpr int64_t kLargestTokenizerBytes = int64_t{256} << 20;
inline constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max();

using TokensById = std::map<int64_t, std::string>;  // id -> token

// The same however the file writes its tokens. Empty of a file that lists none. Throws DataError for tokens
// without ids.
TokensById parse_vocabulary(const std::string& text, const std::string& origin);

// How a model's own tokenizer may have made ids that the model has no rows for; a part of messages.
inline constexpr const char* kTokensWithoutRows =
    "tokens were added to the tokenizer without model.resize_token_embeddings(len(tokenizer))";

// For people: which tokens of the folder's tokenizer.json lie beyond the model's vocabulary. Empty where none
// does, and where no vocabulary can be read.
std::string tell_tokens_without_rows(const std::filesystem::path& model_dir, int64_t vocab_size);

}  // namespace trireme
