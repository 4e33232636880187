// XXH3 (64 bits) of a file's bytes: fast enough to check every file of a checkpoint before it is trusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/base/input_file.h"
#include "trireme/train/digest.h"

namespace trireme {

// Throws as InputFile does when it cannot be read.
uint64_t file_checksum(const std::filesystem::path& file);
// Of bytes [begin, begin + count) alone. DataError where the file ends before.
uint64_t checksum_of_range(const InputFile& file, int64_t begin, int64_t count);
// Reads what checksum_text() writes; DataError for other text.
uint64_t parse_checksum(const std::string& text, const std::string& origin);

}  // namespace trireme
