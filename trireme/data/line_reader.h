// The lines of a file, one after another, in memory for one line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/base/input_file.h"

namespace trireme {

// A document, a line of .jsonl or a whole file, is held in memory; a longer one is a DataError.
constexpr int64_t kLargestDocumentBytes = int64_t{4} << 30;

class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& file) : file_(file, "lines of JSON") {}

  // The next line without its line feed; false at the end. Throws DataError that names file and line: too long, cannot be read.
  bool next(std::string& line);
  std::string origin() const;  // "file:line" of the line read last

 private:
  InputFile file_;
  std::string block_;
  size_t at_ = 0;  // in the block
  int64_t read_bytes_ = 0;
  int64_t line_ = 0;
};

}  // namespace trireme
