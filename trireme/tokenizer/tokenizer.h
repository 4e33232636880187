// A tokenizer read from Hugging Face's tokenizer.json; its ids equal those of the Hugging Face tokenizers
// library. Kinds: byte-level BPE (GPT-2, Llama-3, Qwen), BPE over characters (SentencePiece's: Llama-2,
// Mistral, Gemma), WordPiece (BERT).
//
//   text -> added tokens cut out -> normalized -> pieces (pre-tokenizer) -> ids (model)
//        -> with the ids that the file's post-processor puts around them (<s>; [CLS] and [SEP])
//
// Ignores the file's truncation and padding settings: a document is encoded whole. Reads wrong UTF-8 as
// Python's errors="replace" does (utf8.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/tokenizer/added_tokens.h"
#include "trireme/tokenizer/normalizer.h"
#include "trireme/tokenizer/pre_tokenizer.h"
#include "trireme/tokenizer/token_model.h"

namespace trireme {

// What the files beside a tokenizer.json say of the token that ends a document.
struct NamedEndOfText {
  Json token;  // eos_token of tokenizer_config.json, else eos_token_id (the first of several); null: none
  std::string file;  // that says so
};
// Looks into tokenizer_config.json, config.json and generation_config.json of `folder`, in this order.
NamedEndOfText named_end_of_text(const std::filesystem::path& folder);

class Tokenizer {
 public:
  // `path` is tokenizer.json or a folder that holds it. Throws ConfigError when there is none or its kind is
  // not supported, with what works instead; DataError when the file contradicts itself, gives two tokens one
  // id, or gives ids far beyond the number of its tokens.
  static Tokenizer load(const std::filesystem::path& path);

  // As the library's `encode(text).ids`, with the ids that the post-processor adds. One thread at a time may
  // use a cache; any number of threads may use the tokenizer.
  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<int32_t> encode(std::string_view text, PieceCache& cache) const;

  int64_t vocab_size() const { return vocab_size_; }                   // one more than the largest id
  std::optional<int32_t> id_of_token(const std::string& token) const;  // as the file writes it
  const std::string& token_of_id(int32_t id) const;                    // DataError when there is none

  // The token that ends a document: named_end_of_text beside the tokenizer, else a well-known name
  // (<|endoftext|>, <|end_of_text|>, </s>, <|im_end|>, <eos>, [SEP]). Throws ConfigError when there is none.
  int32_t end_of_text_id() const;

  // What the post-processor puts before each text: <s>, [CLS]. Often empty.
  const std::vector<int32_t>& begin_of_text() const { return before_; }
  // And behind it: </s>, [SEP]. Most often empty.
  const std::vector<int32_t>& behind_text() const { return after_; }

  const std::filesystem::path& file() const { return file_; }

 private:
  Tokenizer(const Json& json, std::filesystem::path file);
  void name_token(int32_t id, std::string_view token, int64_t largest_id);
  void read_added_tokens(const std::vector<AddedToken>& added, int64_t largest_id);
  void read_post_processor(const Json& json);
  void add_around_texts(std::vector<int32_t> before, std::vector<int32_t> after);

  std::filesystem::path file_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<const TokenModel> model_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::vector<std::string> tokens_;  // by id; empty where there is none
  std::unique_ptr<const AddedTokenFinder> find_in_raw_;
  std::unique_ptr<const AddedTokenFinder> find_in_normalized_;
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
  int64_t vocab_size_ = 0;
};

}  // namespace trireme
