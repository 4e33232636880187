#include "bench/incumbents/incumbent_trace.h"

#include <algorithm>

namespace trireme {

Held IncumbentTrace::hold(std::string_view name, std::string_view source, int64_t bytes, TraceStream stream) {
  const int64_t id = allocations_++;
  allocated_bytes_ += bytes;
  const int64_t address = allocator_.allocate(static_cast<int>(stream), bytes);
  live_.emplace(id, Live{{name, source, bytes}, stream, address});
  if (allocator_.held_bytes() > memory_.held_bytes) {
    memory_.held_bytes = allocator_.held_bytes();
    memory_.fullest_phase = phase_;
    fullest_at_ = id;
  }
  memory_.mapped_bytes = allocator_.mapped_bytes();
  if (id == inventory_at_) {
    for (const auto& [number, live] : live_) {
      const IncumbentBuffer& held = live.buffer;
      const auto same = std::ranges::find_if(memory_.buffers, [&held](const IncumbentBuffer& buffer) {
        return buffer.name == held.name && buffer.source == held.source;
      });
      if (same == memory_.buffers.end())
        memory_.buffers.push_back(held);
      else
        same->bytes += held.bytes;
    }
    std::ranges::stable_sort(memory_.buffers, std::ranges::greater{}, &IncumbentBuffer::bytes);
  }
  return {this, id};
}

void IncumbentTrace::release(int64_t id) {
  const auto live = live_.find(id);
  allocator_.release(static_cast<int>(live->second.stream), live->second.address);
  live_.erase(live);
}

}  // namespace trireme
