// Follows one step of the incumbents: who holds which buffer when. A Held is a reference to a tensor's
// storage; it is released with its last reference, as in Python.
#pragma once

#include <map>
#include <utility>

#include "bench/incumbents/caching_allocator.h"
#include "bench/incumbents/incumbent_memory.h"

namespace trireme {

// Streams whose blocks the allocator keeps apart: stage3.py's reduce_and_partition_stream, and the
// __allgather_stream of partitioned_param_coordinator.py.
enum class TraceStream : uint8_t { compute, gather, reduce };

class IncumbentTrace;

class Held {
 public:
  Held() = default;
  Held(Held&& other) noexcept : trace_(std::exchange(other.trace_, nullptr)), id_(other.id_) {}
  Held& operator=(Held&& other) noexcept {
    if (this != &other) {
      release();
      trace_ = std::exchange(other.trace_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  ~Held() { release(); }
  void release();

 private:
  friend class IncumbentTrace;
  Held(IncumbentTrace* trace, int64_t id) : trace_(trace), id_(id) {}
  IncumbentTrace* trace_ = nullptr;
  int64_t id_ = 0;
};

class IncumbentTrace {
 public:
  // Writes down the buffers that are held after allocation number `inventory_at`; -1: none.
  explicit IncumbentTrace(int64_t inventory_at = -1) : inventory_at_(inventory_at) {}
  Held hold(std::string_view name, std::string_view source, int64_t bytes,
            TraceStream stream = TraceStream::compute);
  void enter(std::string_view phase) { phase_ = phase; }

  int64_t fullest_at() const { return fullest_at_; }            // the allocation after which most was held
  int64_t allocated_bytes() const { return allocated_bytes_; }  // of all allocations together
  const IncumbentMemory& memory() const { return memory_; }

 private:
  friend class Held;
  struct Live {
    IncumbentBuffer buffer;
    TraceStream stream{};
    int64_t address = 0;
  };
  void release(int64_t id);

  CachingAllocator allocator_{3};
  std::map<int64_t, Live> live_;
  std::string_view phase_;
  int64_t allocations_ = 0;
  int64_t allocated_bytes_ = 0;
  int64_t inventory_at_ = -1;
  int64_t fullest_at_ = 0;
  IncumbentMemory memory_;
};

inline void Held::release() {
  if (trace_ != nullptr) std::exchange(trace_, nullptr)->release(id_);
}

}  // namespace trireme
