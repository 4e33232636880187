// Ranges of files, read by a thread of its own ahead of their use, in order, into a ring of buffers:
//
//   ranges -> [reader: pread] -> at most buffers - 2 read and not yet asked for -> next()
//
// So the file is read while the values before are converted, and memory stays what the buffers take.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/base/input_file.h"

namespace trireme {

class ReadAhead {
 public:
  struct Range {
    const InputFile* file = nullptr;  // outlives this object
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // Begins to read. Three buffers or more, each as large as the largest range; they outlive this object.
  ReadAhead(std::vector<Range> ranges, std::vector<std::byte*> buffers);
  // Ends the reader after the range that it reads.
  ~ReadAhead() = default;
  ReadAhead& operator=(ReadAhead&&) = delete;

  // The bytes of the next range. They stay until the second call after this one. Throws what reading them
  // threw (DataError: the file was cut or cannot be read); call it no more then. InternalError behind the
  // last range.
  const std::byte* next();

 private:
  void read_all(const std::stop_token& stop);

  const std::vector<Range> ranges_;
  const std::vector<std::byte*> buffers_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  size_t read_ = 0;   // ranges that are in their buffers
  size_t taken_ = 0;  // ranges that next() gave
  std::exception_ptr failure_;
  std::jthread reader_;  // last: joined before the others are destroyed
};

}  // namespace trireme
