// What a GPU is called by its driver.
#pragma once

#include <string>

#include <ATen/ATen.h>

namespace trireme {

// "NVIDIA H200"; empty for a device that is no CUDA device.
std::string gpu_name(at::Device device);

}  // namespace trireme
