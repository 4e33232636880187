#include "trireme/device/cpu_caching_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <sys/mman.h>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/device/memory_account.h"
#include "trireme/device/out_of_memory.h"

namespace trireme {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallLimit = size_t{64} << 10;  // below this malloc is quick, and keeps its pages
constexpr size_t kGranule = size_t{64} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
// The data of a mapped block start at its second page; its header is at the end of the first page. Direct
// disk transfers need page-aligned memory.
constexpr size_t kPage = 4096;
constexpr size_t kMostBytes = size_t{1} << 62;

// Lies in the 64 bytes before a block's data.
struct BlockHeader {
  size_t mapped_bytes = 0;    // 0: from malloc
  int64_t counted_bytes = 0;  // in `owner`
  MemoryOwner owner;          // keeps the account alive as long as the block

  void count(size_t bytes) {
    owner = MemoryScope::current();
    if (owner.account == nullptr) return;
    counted_bytes = static_cast<int64_t>(bytes);
    owner.account->add(owner.category, counted_bytes, MemorySpace::host);
  }
  void uncount() {
    if (owner.account == nullptr) return;
    owner.account->add(owner.category, -counted_bytes, MemorySpace::host);
    owner.account.reset();
  }
};
static_assert(sizeof(BlockHeader) <= kAlignment);

BlockHeader* header_of(void* data) {
  return reinterpret_cast<BlockHeader*>(static_cast<char*>(data) - kAlignment);
}

char* data_of(BlockHeader* header) {
  return reinterpret_cast<char*>(header) + kAlignment;
}
char* mapped_base_of(BlockHeader* header) {
  return data_of(header) - kPage;
}

void free_block(void* data);

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  void give_back(void* data) {
    if (data == nullptr) return;
    BlockHeader* header = header_of(data);
    header->uncount();
    if (header->mapped_bytes == 0) {
      std::destroy_at(header);
      std::free(header);
      return;
    }
    const std::lock_guard lock(mutex_);
    counts_.in_use_bytes -= static_cast<int64_t>(header->mapped_bytes);
    cached_.emplace(header->mapped_bytes, header);
  }

  HostMemoryCounts counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  void release_cached() {
    const std::lock_guard lock(mutex_);
    release_cached(reserved());
  }

  void limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_bytes_ = bytes;
  }

 private:
  void* take(size_t bytes) {
    if (bytes < kSmallLimit) {
      void* base = std::aligned_alloc(kAlignment, (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment);
      if (base == nullptr) out_of_memory(bytes, 0);
      (new (base) BlockHeader)->count(bytes);
      return static_cast<char*>(base) + kAlignment;
    }
    BlockHeader* block = take_mapped(bytes);
    block->count(bytes);
    return data_of(block);
  }

  BlockHeader* take_mapped(size_t bytes) {
    if (bytes > kMostBytes) out_of_memory(bytes, 0);  // rounding it up would overflow
    const size_t wanted = (bytes + kPage + kGranule - 1) / kGranule * kGranule;
    const std::lock_guard lock(mutex_);
    if (limit_bytes_ > 0 && counts_.in_use_bytes + static_cast<int64_t>(wanted) > limit_bytes_)
      out_of_memory(bytes, counts_.in_use_bytes,
                    cat("Tensors of this process may hold ", format_bytes(limit_bytes_),
                        "; --host_memory_limit sets what the ranks of this machine may hold together"));
    BlockHeader* block = nullptr;
    const auto fit = cached_.lower_bound(wanted);
    if (fit != cached_.end() && fit->first <= wanted + wanted / 4) {
      block = fit->second;
      cached_.erase(fit);
    } else {
      make_room(wanted);
      block = map_block(wanted);
      if (block == nullptr) {
        release_cached(reserved());
        block = map_block(wanted);
      }
      if (block == nullptr) out_of_memory(bytes, counts_.in_use_bytes);
      (new (block) BlockHeader)->mapped_bytes = wanted;
      counts_.reserved_bytes += static_cast<int64_t>(wanted);
    }
    counts_.in_use_bytes += static_cast<int64_t>(block->mapped_bytes);
    counts_.peak_in_use_bytes = std::max(counts_.peak_in_use_bytes, counts_.in_use_bytes);
    return block;
  }

  size_t reserved() const { return static_cast<size_t>(counts_.reserved_bytes); }

  // Called before a block is mapped: releases cached blocks so that the total stays within the limit.
  void make_room(size_t wanted) {
    const auto in_use = static_cast<size_t>(counts_.in_use_bytes);
    const size_t most = std::max(static_cast<size_t>(counts_.peak_in_use_bytes), in_use + wanted);
    size_t limit = most + static_cast<size_t>(kCachedShare * static_cast<double>(most));
    if (limit_bytes_ > 0) limit = std::min(limit, static_cast<size_t>(limit_bytes_));
    if (reserved() + wanted > limit) release_cached(reserved() + wanted - limit);
  }

  void release_cached(size_t bytes) {
    size_t released = 0;
    while (released < bytes && !cached_.empty()) {
      // Release the smallest block that covers the missing bytes, else the largest block.
      auto victim = cached_.lower_bound(bytes - released);
      if (victim == cached_.end()) victim = std::prev(cached_.end());
      const size_t size = victim->first;
      munmap(mapped_base_of(victim->second), size);
      cached_.erase(victim);
      counts_.reserved_bytes -= static_cast<int64_t>(size);
      released += size;
    }
  }

  static BlockHeader* map_block(size_t bytes) {
    const size_t slack = bytes >= kHugePage ? kHugePage : 0;
    void* raw = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    if (slack == 0) return header_of(static_cast<char*>(raw) + kPage);
    const auto start = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
    if (aligned > start) munmap(raw, aligned - start);
    const size_t tail = start + slack - aligned;
    if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
    madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
    return header_of(reinterpret_cast<char*>(aligned) + kPage);
  }

  [[noreturn]] static void out_of_memory(size_t bytes, int64_t in_use_bytes, const std::string& detail = "") {
    throw_out_of_memory("host", MemorySpace::host, static_cast<int64_t>(std::min(bytes, kMostBytes)),
                        in_use_bytes, detail);
  }

  std::mutex mutex_;
  std::multimap<size_t, BlockHeader*> cached_;
  int64_t limit_bytes_ = 0;  // 0: none
  HostMemoryCounts counts_;
};

// Never destroyed: tensors with static storage may outlive every other object.
CachingAllocator& the_allocator() {
  static auto* allocator = new CachingAllocator;
  return *allocator;
}

void free_block(void* data) {
  the_allocator().give_back(data);
}

}  // namespace

void install_cpu_caching_allocator() {
  c10::SetCPUAllocator(&the_allocator(), /*priority=*/100);
}
HostMemoryCounts host_memory_counts() {
  return the_allocator().counts();
}
void release_cached_host_memory() {
  the_allocator().release_cached();
}
void limit_host_memory(int64_t bytes) {
  the_allocator().limit(bytes);
}
void count_host_block_as(const c10::DataPtr& data, MemoryCategory category) {
  if (data.get() == nullptr || data.get_deleter() != &free_block) return;
  BlockHeader* header = header_of(data.get_context());
  MemoryOwner& owner = header->owner;
  if (owner.account == nullptr || owner.category == category) return;
  owner.account->move(std::exchange(owner.category, category), category, header->counted_bytes,
                      MemorySpace::host);
}

}  // namespace trireme
