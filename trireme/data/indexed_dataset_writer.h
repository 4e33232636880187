// Streams documents into an indexed dataset (format: indexed_dataset.h). The two files get their final names
// only when `finish` has written and synced them. Before that, and after any failure, neither exists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "trireme/base/file_descriptor.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {

// In the names of the two files before they are whole; the process's number follows.
constexpr const char* kPartialSet = ".partial-";

class IndexedDatasetWriter {
 public:
  // Makes PREFIX's folder when needed. Token ids must lie in [0, vocab_size), which also chooses their type.
  // Throws ConfigError for a PREFIX that ends with a slash; DataError when the folder cannot be written to;
  // SystemFault, here and below, where its file system is away.
  IndexedDatasetWriter(const std::filesystem::path& prefix, int64_t vocab_size);
  // Of ids that are known by their type alone, uint16 or int32: all that it holds, from 0 on.
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type);
  ~IndexedDatasetWriter();  // without `finish`: removes what was written
  IndexedDatasetWriter& operator=(IndexedDatasetWriter&&) = delete;

  // Adds one document, of which some spans may be prompts (prompts.h), in order; or its first tokens. Throws
  // DataError for an id outside the vocabulary, 2^31 tokens or more, or a full disk.
  void add_document(std::span<const int32_t> tokens, const TokenSpans& prompts);
  void add_document(std::span<const int32_t> tokens, int64_t prompt_tokens = 0);
  // Throws DataError when no tokens were added or the disk is full. Replaces a set of the same name.
  void finish();

  int64_t documents() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t tokens() const { return tokens_; }
  int64_t largest_id() const { return largest_id_; }  // so far

 private:
  IndexedDatasetWriter(const std::filesystem::path& prefix, int64_t vocab_size, TokenType type);
  void add_sequence(std::span<const int32_t> tokens, SequenceMode mode);
  void write_index() const;

  std::filesystem::path bin_;
  std::filesystem::path idx_;
  std::filesystem::path partial_bin_;
  std::filesystem::path partial_idx_;
  int64_t vocab_size_ = 0;
  TokenType type_ = TokenType::int32;
  FileDescriptor descriptor_;
  std::vector<std::byte> buffer_;
  std::vector<int32_t> sizes_;       // of the sequences, in tokens
  std::vector<SequenceMode> modes_;  // of the sequences
  std::vector<int64_t> documents_{0};
  int64_t tokens_ = 0;
  int32_t largest_id_ = 0;
};

}  // namespace trireme
