// A machine whose memory has run out for one rank: while this lives, its thread gets no CPU tensor of
// `least_bytes` or more. Ranks are threads; prepare() comes before they start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <c10/core/CPUAllocator.h>

#include "trireme/device/out_of_memory.h"

namespace trireme::testing {

class RefusedMemory {
 public:
  static void prepare() {
    // Never destroyed: storages remember their allocator.
    static auto* const allocator = new Allocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(allocator, /*priority=*/100);
  }
  explicit RefusedMemory(size_t least_bytes) { refused_from_bytes_ = least_bytes; }
  ~RefusedMemory() { refused_from_bytes_ = kNothing; }
  RefusedMemory& operator=(RefusedMemory&&) = delete;

 private:
  // As the program's own allocator does.
  class Allocator final : public c10::Allocator {
   public:
    explicit Allocator(c10::Allocator& inner) : inner_(inner) {}
    c10::DataPtr allocate(size_t bytes) override {
      if (bytes >= refused_from_bytes_)
        throw_out_of_memory("host", MemorySpace::host, static_cast<int64_t>(bytes), /*in_use_bytes=*/0);
      return inner_.allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      inner_.copy_data(to, from, bytes);
    }

   private:
    c10::Allocator& inner_;
  };

  static constexpr size_t kNothing = std::numeric_limits<size_t>::max();
  inline static thread_local size_t refused_from_bytes_ = kNothing;
};

}  // namespace trireme::testing
