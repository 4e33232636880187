// XXH3 (64 bits) of things that are added one by one, and of files too large to be read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <xxhash.h>

namespace trireme {

// As 16 hexadecimal digits, which JSON writes and reads without loss.
std::string checksum_text(uint64_t checksum);

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

// Of at most `blocks` (2 or more) blocks of 64 KiB: the first begins the file, the last one ends it. A
// smaller file is read whole. Throws DataError that names the file when it cannot be read.
Digest digest_of_spread_blocks(const std::filesystem::path& file, int64_t blocks);

}  // namespace trireme
