// Reader of Megatron-LM's indexed dataset, PREFIX.bin and PREFIX.idx.
//
//   PREFIX.bin   the tokens of all sequences, one after another, in one integer type
//   PREFIX.idx   "MMIDIDX\0\0", version 1 (u64), dtype code (u8), sequence count n (u64), document index
//                count d (u64), sizes int32[n] in tokens, pointers int64[n] in bytes into .bin, document
//                indices int64[d] (0 first, n last: document i is the sequences [index[i], index[i+1])); in
//                sets with prompts a mode a sequence, u8[n] (prompts.h); little-endian, unaligned.
//
// The reader shows the set as one stream of tokens, cut by document borders. Trireme's writer makes each
// document one sequence, or a prompt and what follows it. Data is read when it is needed and not kept, so an
// index may be larger than memory; only prompts are kept, 16 bytes each.
// A file that is truncated, replaced in place or unreadable meanwhile is a DataError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/input_file.h"
#include "trireme/base/token_span.h"
#include "trireme/data/prompts.h"

namespace trireme {

enum class TokenType : uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

int64_t token_bytes(TokenType type);
// Megatron-LM's choice: uint16 below 65,500 ids, else int32.
TokenType token_type_for(int64_t vocab_size);

// The name of one of the two files. `prefix` may end in .bin or .idx.
std::filesystem::path indexed_dataset_bin(const std::filesystem::path& prefix);
std::filesystem::path indexed_dataset_idx(const std::filesystem::path& prefix);
// True if both files exist. Throws DataError when the system cannot tell.
bool is_indexed_dataset(const std::filesystem::path& prefix);

class IndexedDataset {
 public:
  // Checks magic, version, counts, sizes, pointers, document indices, modes and the size of both files.
  // Throws DataError that names the file and the offset. `made_of`: the text that the tokens were made of, which
  // people know, not the files.
  explicit IndexedDataset(const std::filesystem::path& prefix, std::string made_of = "");

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  TokenType token_type() const { return type_; }
  const std::filesystem::path& path() const { return bin_.path(); }
  // For messages on its content.
  std::string name() const { return made_of_.empty() ? path().string() : made_of_; }

  int64_t document_begin(int64_t document) const;  // token offset in the stream; documents() gives tokens()
  // document_begin of documents [first, first + count), up to documents() itself: one read instead of many.
  std::vector<int64_t> document_begins(int64_t first, int64_t count) const;
  // body(TokenSpan) of each document, as far as it lies in this range of the stream.
  void for_documents(TokenSpan range, const std::function<void(TokenSpan)>& body) const;
  int64_t longest_document() const;          // tokens
  int64_t document_of(int64_t token) const;  // which document holds this token of the stream
  const Prompts& prompts() const { return prompts_; }

  // Copies tokens [begin, begin + count) of the stream to `out`. `vocab_size` > 0: a token outside [0,
  // vocab_size) is a DataError that names the document, the token's offset in it and its id.
  void read(int64_t begin, int64_t count, int64_t* out, int64_t vocab_size = 0) const;

 private:
  void check_layout();
  void read_prompts();
  int64_t token_offset(int64_t pointer) const;
  [[noreturn]] void refuse_changed() const;

  InputFile idx_;
  InputFile bin_;
  std::string made_of_;
  TokenType type_ = TokenType::int32;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  int64_t pointers_at_ = 0;          // byte offset of the pointers in .idx
  int64_t document_indices_at_ = 0;  // byte offset of the document indices in .idx
  int64_t modes_at_ = 0;             // byte offset of the modes in .idx; 0: there are none
  Prompts prompts_;
};

}  // namespace trireme
