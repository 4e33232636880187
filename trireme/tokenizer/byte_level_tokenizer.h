// A byte-level tokenizer for tiny models: one token a byte and a few special ones, without merges.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme {

// 256 bytes, <|endoftext|> and <|pad|>.
constexpr int64_t byte_level_vocabulary_size = 258;

// Writes DIR/tokenizer.json and DIR/tokenizer_config.json, which Trireme and transformers' AutoTokenizer read
// to the same ids. Ids 0-255 are the bytes, 256 is <|endoftext|>, 257 is <|pad|>, and <|reserved_i|> fill up
// to `vocab_size`; a model's vocabulary may be larger. Throws ConfigError when vocab_size is below
// byte_level_vocabulary_size; DataError when the folder cannot be written to.
void write_byte_level_tokenizer(const std::filesystem::path& dir,
                                int64_t vocab_size = byte_level_vocabulary_size);

}  // namespace trireme
