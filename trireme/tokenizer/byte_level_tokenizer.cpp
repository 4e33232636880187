#include "trireme/tokenizer/byte_level_tokenizer.h"

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/make_folder.h"
#include "trireme/tokenizer/byte_level.h"

namespace trireme {

namespace {

constexpr int64_t kBytes = 256;

void write_json(const std::filesystem::path& file, const Json& json) {
  write_durable(file, json.dump(2) + "\n");
}

std::string special_token(int64_t id) {
  if (id == kBytes) return "<|endoftext|>";
  if (id == kBytes + 1) return "<|pad|>";
  return cat("<|reserved_", id - kBytes - 2, "|>");
}

}  // namespace

void write_byte_level_tokenizer(const std::filesystem::path& dir, int64_t vocab_size) {
  if (vocab_size < byte_level_vocabulary_size)
    throw ConfigError(cat("a byte-level tokenizer needs ", byte_level_vocabulary_size,
                          " ids (256 bytes, <|endoftext|>, <|pad|>); the vocabulary has ", vocab_size));
  Json vocabulary = Json::object(), added = Json::array();
  for (int64_t byte = 0; byte < kBytes; ++byte)
    vocabulary[token_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  for (int64_t id = kBytes; id < vocab_size; ++id)
    added.push_back({{"id", id},
                     {"content", special_token(id)},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};

  make_folder(dir);
  write_json(dir / "tokenizer.json", {{"version", "1.0"},
                                      {"truncation", nullptr},
                                      {"padding", nullptr},
                                      {"added_tokens", added},
                                      {"normalizer", nullptr},
                                      {"pre_tokenizer", byte_level},
                                      {"post_processor", byte_level},
                                      {"decoder", byte_level},
                                      {"model",
                                       {{"type", "BPE"},
                                        {"dropout", nullptr},
                                        {"unk_token", nullptr},
                                        {"continuing_subword_prefix", nullptr},
                                        {"end_of_word_suffix", nullptr},
                                        {"fuse_unk", false},
                                        {"byte_fallback", false},
                                        {"ignore_merges", false},
                                        {"vocab", vocabulary},
                                        {"merges", Json::array()}}}});
  write_json(dir / "tokenizer_config.json", {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                             {"eos_token", special_token(kBytes)},
                                             {"pad_token", special_token(kBytes + 1)},
                                             {"clean_up_tokenization_spaces", false},
                                             {"model_max_length", 1000000000}});
}

}  // namespace trireme
