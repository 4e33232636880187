// What memory is used for, which memory it is, and bytes by that. No torch here: the byte formulas and the planner
// use it too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace trireme {

enum class MemoryCategory : uint8_t {
  parameters,     // the values that compute reads
  gradients,      // of parameters
  optimizer,      // fp32 masters where they are not the parameters themselves, and the moments
  activations,    // what forward keeps for backward, and the running x and dx between layers
  attention,      // q, k, v, o, lse and their gradients of the layer at work, and the kernel's workspace
  tiles,          // inside one tile of a layer's token-wise halves, or of the head
  communication,  // buffers that a collective packs, receives or sums in
  other,          // tokens, targets, losses, rotary tables
};

// The device that computes, or the host beside it. A CPU has one memory alone, which is the device's.
enum class MemorySpace : uint8_t { device, host };

inline constexpr std::array kAllMemoryCategories = {
    MemoryCategory::parameters,    MemoryCategory::gradients, MemoryCategory::optimizer,
    MemoryCategory::activations,   MemoryCategory::attention, MemoryCategory::tiles,
    MemoryCategory::communication, MemoryCategory::other};

inline const char* name_of(MemoryCategory category) {
  constexpr std::array kNames = {"parameters", "gradients", "optimizer",     "activations",
                                 "attention",  "tiles",     "communication", "other"};
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
