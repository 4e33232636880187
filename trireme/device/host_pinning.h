// Pins host memory: its pages cannot move, so a GPU can copy to and from them by itself while it computes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/ATen.h>

namespace trireme {

struct HostPinning {
  // Pins [data, data + bytes), both multiples of a page, whose content is lost. Returns an empty text on success, else the reason of
  // the failure.
  std::function<std::string(void* data, int64_t bytes)> pin;
  // Unpins the memory that was pinned at `data`; does not throw.
  std::function<void(void* data)> unpin;
};

// For copies to and from `device` and any other GPU of this process. Only CUDA devices need pinned pages.
// Throws ConfigError for a CUDA device in a build without CUDA.
HostPinning make_host_pinning(at::Device device);

// Pins nothing.
inline HostPinning no_pinning() {
  return {[](void* /*data*/, int64_t /*bytes*/) { return std::string(); }, [](void* /*data*/) {}};
}

}  // namespace trireme
