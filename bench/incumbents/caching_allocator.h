// The memory that PyTorch's caching allocator maps for a sequence of allocations, without a device: one
// growing range for each CUDA stream, best fit among its free blocks, as with `expandable_segments:True`
// (c10/cuda/CUDACachingAllocator.cpp: get_free_block, try_allocate_expandable_block).
//
//   held    bytes of what is allocated                     torch.cuda.memory_allocated
//   mapped  bytes up to each range's highest address yet   torch.cuda.memory_reserved, what nvidia-smi adds
// Freed blocks stay mapped: a hole that is too small for what comes next counts until memory runs out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace trireme {

class CachingAllocator {
 public:
  explicit CachingAllocator(int streams) : ranges_(static_cast<std::size_t>(streams)) {}

  int64_t allocate(int stream, int64_t bytes);  // the address, within the stream's range
  void release(int stream, int64_t address);    // InternalError: nothing is allocated there
  int64_t held_bytes() const { return held_bytes_; }
  int64_t mapped_bytes() const;

 private:
  struct Range {
    std::map<int64_t, int64_t> used;  // address -> bytes
    std::map<int64_t, int64_t> free;  // none touches another
    int64_t end_bytes = 0;            // of the last block, used or free
    int64_t highest_bytes = 0;
  };
  std::vector<Range> ranges_;
  int64_t held_bytes_ = 0;
};

}  // namespace trireme
