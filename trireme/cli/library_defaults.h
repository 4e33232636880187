// Settings of the libraries beneath that the program wants otherwise than they come. Set by the program, never by the
// library, and left alone where the user's environment says anything.
#pragma once

#include <string>

namespace trireme {

// Once, before the first CUDA call and the first thread.
//   expandable_segments:True        freed pieces of GPU memory can be joined; without it, blocks of growing sizes
//                                   leave gaps. Left alone where PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF is set.
//   TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000   c10d waits four times as long between finding a lost peer and ending the
//                                   process; its default makes that a minute.
//   TORCH_CPP_LOG_LEVEL=FATAL       c10d tells of each try to connect and of each lost peer, with C++ stack traces; the
//                                   CommError that follows says the same in one line.
void set_library_defaults();

// What the GPU's allocator is told: "expandable_segments:True", or what the environment says.
std::string gpu_allocator_settings();

}  // namespace trireme
