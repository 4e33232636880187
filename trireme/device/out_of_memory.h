// The out-of-memory error, the same for every allocator: the CPU's, a GPU's, the pool of pinned memory. It
// names the category, the bytes requested, the bytes that this rank holds of that memory, and the options
// that would help, the largest saving first.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "trireme/base/error.h"
#include "trireme/device/memory_category.h"

namespace trireme {

// Throws ConfigError for a failed allocation in this thread's MemoryScope. `where` is "host" in "out of host
// memory". Without an account, the message gives `in_use_bytes` as the bytes held. `detail`, a sentence
// without its full stop, ends the message.
[[noreturn]] void throw_out_of_memory(const char* where, MemorySpace space, int64_t asked_bytes,
                                      int64_t in_use_bytes, const std::string& detail = "");

// Converts an out-of-memory error of a library to a ConfigError with the library's text and no category:
// libtorch's error without an observer, std::bad_alloc, a thread that could not be started. nullopt for any
// other error.
std::optional<ConfigError> as_out_of_memory(const std::exception& error);

}  // namespace trireme
