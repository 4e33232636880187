// A device beside the CPU, for tests without a GPU: libtorch's hook for a backend of one's own. What makes it
// a witness:
//   - its memory lies where the host may not touch it: code that takes a device tensor's address is ended by
//     a signal;
//   - operators take tensors of one device, CPU scalars apart, as CUDA's do, or throw (guarded_device.cpp);
//   - memory that was never written, or was given back, reads as NaN (guarded_memory.h);
//   - copies on a stream of their own happen as late as the marks between streams allow (guarded_streams.h).
// Operators run on the CPU, so results are the CPU's bit for bit. The default stream does not lag behind the
// host: what the host or a copy must wait for there is not seen here.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace trireme::testing {

c10::Device guarded_device();

// For operators of this device: the CPU tensor on the bytes of `tensor`, with its offset in the storage; it
// owns nothing. One of the CPU is itself.
at::Tensor as_cpu_tensor(const at::Tensor& tensor);

// From here on, or no longer, the device says that it has failed when it is asked about a stream's work, as a
// GPU does after an error that stays. Nothing else of it fails.
void fail_guarded_device(bool failed);

// That this thread has copied so far between the host and the device, waiting for each copy: on a GPU it
// would have stood until the work given before was done.
int64_t blocking_copy_bytes();
// How often this thread has read from the device, by a copy that it waited for or an operator whose result
// the host has to know (item, nonzero).
int64_t host_reads();

}  // namespace trireme::testing
