// Reads a file line by line, with one line in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/base/input_file.h"

namespace trireme {

// A document (a line of .jsonl or a whole file) is held in memory; a longer document is a DataError.
constexpr int64_t kLargestDocumentBytes = int64_t{4} << 30;

class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& file) : file_(file, "lines of JSON") {}

  // Reads the next line, without its line feed; false at the end. Throws DataError that names file and line
  // when the line is too long or cannot be read.
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
