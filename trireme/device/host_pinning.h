// Pinning of the host's memory: its pages stay where they are, so that a GPU copies from and to them by itself, beside
// its computation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/ATen.h>

namespace trireme {

struct HostPinning {
  // [data, data + bytes), both multiples of a page. Empty when it is pinned from then on, else why it is not.
  std::function<std::string(void* data, int64_t bytes)> pin;
  // What was pinned from `data` on; does not throw.
  std::function<void(void* data)> unpin;
};

// For copies from and to `device`, and any other GPU of this process. Only CUDA devices need pages that stay; for them, a
// ConfigError in a build without CUDA.
HostPinning make_host_pinning(at::Device device);

// Leaves pages as they are.
inline HostPinning no_pinning() {
  return {[](void* /*data*/, int64_t /*bytes*/) { return std::string(); }, [](void* /*data*/) {}};
}

}  // namespace trireme
