// The model and the identity of a GPU, as the driver reports them, and why there is none.
#pragma once

#include <string>

#include <ATen/ATen.h>

namespace trireme {

// All empty for a device that is no CUDA device.
struct GpuIdentity {
  std::string name;  // of the model: "NVIDIA H200"
  std::string uuid;  // 32 hexadecimal digits
  std::string bus;   // PCI address: "0000:3B:00.0"
};
GpuIdentity gpu_identity(at::Device device);

// Where libtorch finds no GPU, its reason: a driver that is too old, say. Libtorch itself gives it as a warning alone.
std::string why_no_gpu();

}  // namespace trireme
