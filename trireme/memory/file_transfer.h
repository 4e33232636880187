// Moves bytes between memory and a file, whatever the system does in between (signals, short transfers), and
// leaves little of them in the page cache.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// Both return an empty text, or what went wrong and after how many bytes. They return when the memory may be
// used again.
std::string write_bytes(int descriptor, int64_t offset, const char* data, int64_t bytes);
std::string read_bytes(int descriptor, int64_t offset, char* data, int64_t bytes);

}  // namespace trireme
