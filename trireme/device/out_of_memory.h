// The error of memory that is not there, the same for whichever allocator found out: the CPU's, a GPU's, the pool of
// pinned memory. It names the category and the bytes asked, what this rank holds of that memory, and the options that
// would help, the largest saving first.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "trireme/base/error.h"
#include "trireme/device/memory_category.h"

namespace trireme {

// Throws ConfigError for an allocation of this thread, in the place of its MemoryScope. `where` as in "out of host
// memory". Where no account counts, `in_use_bytes` stand for what is held. `detail`, a sentence without its full stop,
// is told beside it.
[[noreturn]] void throw_out_of_memory(const char* where, MemorySpace space, int64_t asked_bytes,
                                      int64_t in_use_bytes, const std::string& detail = "");

// An error of a library that says that memory is missing, as ours, with its words and without a category: libtorch's own
// where nobody watches, std::bad_alloc, a thread that could not be started. None for any other error.
std::optional<ConfigError> as_out_of_memory(const std::exception& error);

}  // namespace trireme
