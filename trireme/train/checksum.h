// XXH3 (64 bits) of texts, of files and of things that are added one by one: fast enough to check every file of
// a checkpoint before it is trusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <xxhash.h>

#include "trireme/base/input_file.h"

namespace trireme {

// As 16 hexadecimal digits, which JSON writes and reads without loss.
std::string checksum_text(uint64_t checksum);
// Reads what checksum_text() writes; DataError for other text.
uint64_t parse_checksum(const std::string& text, const std::string& origin);

class Digest {
 public:
  Digest() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  void add(const std::string& text) {
    add_number(text.size());
    add(text.data(), text.size());
  }
  void add_number(uint64_t number) { add(&number, sizeof(number)); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }
  std::string text() const { return checksum_text(value()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

// Of the text's bytes alone, as 16 digits.
std::string text_checksum(const std::string& text);
// Throws as InputFile does when it cannot be read.
uint64_t file_checksum(const std::filesystem::path& file);
// Of bytes [begin, begin + count) alone. DataError where the file ends before.
uint64_t checksum_of_range(const InputFile& file, int64_t begin, int64_t count);
// Of files too large to be read whole: at most `blocks` (2 or more) blocks of 64 KiB, of which the first begins
// the file and the last one ends it. A smaller file is read whole. Throws DataError that names the file when it
// cannot be read.
Digest digest_of_spread_blocks(const std::filesystem::path& file, int64_t blocks);

}  // namespace trireme
