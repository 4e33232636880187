// Changes defaults of libraries that Trireme uses. Only the program does so, never the library, and not where
// the user's environment sets a value.
#pragma once

#include <string>

namespace trireme {

// Call once, before the first CUDA call and the first thread.
//   expandable_segments:True        freed GPU memory can be joined; without it, blocks of growing sizes leave
//                                   gaps. Not set if PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF is set.
//   TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000   c10d waits four times this between finding a lost peer and
//                                   ending the process; its default makes that a minute.
//   TORCH_CPP_LOG_LEVEL=FATAL       c10d logs each try to connect and each lost peer, with C++ stack traces;
//                                   the CommError that follows says the same in one line.
void set_library_defaults();

// The settings of the GPU's allocator: "expandable_segments:True", or those of the environment.
std::string gpu_allocator_settings();

}  // namespace trireme
