// Documents from files: what `tokenize` and `--train_file` take as input.
//
//   a folder        every file below it, sorted by path, hidden ones (.git) and binary ones left out and counted;
//                   symbolic links are followed, a folder is visited once
//   a .jsonl file   one document a line: the string under `field`
//   another file    one document, its bytes as they are (line ends kept)
//
// A file is binary when it has a zero byte in its first 8 KiB, as git tells.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct Document {
  std::string text;    // may hold wrong UTF-8
  std::string origin;  // "file" or "file:line", for messages
};

struct SourceCounts {
  int64_t files = 0;            // read
  int64_t binary_files = 0;     // left out
  int64_t hidden_entries = 0;   // files and folders left out
  int64_t empty_documents = 0;  // left out
  int64_t text_bytes = 0;       // of all documents
};

class TextSource {
 public:
  // Throws ConfigError for an input that does not exist; DataError for an input file that is binary or cannot
  // be read.
  TextSource(const std::vector<std::filesystem::path>& inputs, std::string field);

  // The next document that is not empty. Throws DataError with file and line for wrong JSON, a line without
  // the field, or one that is no string; with the file when it cannot be read.
  std::optional<Document> next();
  const SourceCounts& counts() const { return counts_; }

 private:
  void add_folder(const std::filesystem::path& folder);
  std::optional<Document> next_line();
  std::optional<Document> whole_file(const std::filesystem::path& file);

  std::string field_;
  std::vector<std::filesystem::path> files_;
  size_t next_file_ = 0;
  std::ifstream lines_;  // the .jsonl file being read
  std::filesystem::path lines_file_;
  int64_t line_ = 0;
  SourceCounts counts_;
};

}  // namespace trireme
