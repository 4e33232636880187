// The purposes of memory, the memory spaces, and bytes by purpose. This file does not use torch: the byte
// formulas and the planner include it too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace trireme {

enum class MemoryCategory : uint8_t {
  parameters,     // the values that compute reads
  gradients,      // of parameters
  optimizer,      // masters where they are not the parameters themselves, and Adam's moments
  activations,    // kept by forward for backward, and the running x and dx between layers
  attention,      // q, k, v, o, lse and their gradients of the current layer, and the kernel's workspace
  tiles,          // buffers of one tile of a layer's token-wise halves, or of the head
  communication,  // buffers that a collective packs, receives or sums in; in a plan, NCCL's as well
  snapshot,       // of a checkpoint that is written while training goes on
  other,          // tokens, targets, losses, rotary tables
};

// The device that computes, or the host of a GPU. A rank on the CPU has only one memory, the device's.
enum class MemorySpace : uint8_t { device, host };

inline constexpr std::array kAllMemoryCategories = {
    MemoryCategory::parameters,    MemoryCategory::gradients, MemoryCategory::optimizer,
    MemoryCategory::activations,   MemoryCategory::attention, MemoryCategory::tiles,
    MemoryCategory::communication, MemoryCategory::snapshot,  MemoryCategory::other};

inline const char* name_of(MemoryCategory category) {
  constexpr std::array kNames = {"parameters", "gradients",     "optimizer", "activations", "attention",
                                 "tiles",      "communication", "snapshot",  "other"};
  return kNames[static_cast<std::size_t>(category)];
}

// Bytes of each category.
struct MemoryBytes {
  std::array<int64_t, kAllMemoryCategories.size()> values{};

  int64_t& operator[](MemoryCategory category) { return values[static_cast<std::size_t>(category)]; }
  int64_t operator[](MemoryCategory category) const { return values[static_cast<std::size_t>(category)]; }
  int64_t total() const { return std::accumulate(values.begin(), values.end(), int64_t{0}); }
  bool operator==(const MemoryBytes&) const = default;
};

}  // namespace trireme
