// What CpuFlashAttention cuts its memory into (cpu_flash_forward.cpp, cpu_flash_backward.cpp). The kernel
// allocates by these sizes, and the memory forecast counts by them. E is the type that tiles are multiplied
// in. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/round_up.h"

namespace trireme {

constexpr int64_t kPanel = 64;  // columns of a packed panel (tile_gemm.h), and tokens of a query block
constexpr int64_t kForwardKeys = 512;
// Between rows of forward's scores. Rows a power of two apart would share a few sets of the cache.
constexpr int64_t kScoreStride = kForwardKeys + 32;
constexpr int64_t kBackwardKeys = 192;
constexpr int64_t kStack = 2;  // query heads that forward multiplies at once
constexpr int64_t kStackRows = kStack * kPanel;
// Forward's packed keys and values at work at once, at least one head's.
constexpr int64_t kPackedBytes = int64_t{16} << 20;

struct FlashSizes {
  int64_t queries;
  int64_t keys;
  int64_t width;
  int64_t depth;           // width as an inner dimension: even for bf16
  int64_t columns;         // width as columns of fp32 sums
  int64_t panels;          // of 64 columns, across width
  int64_t padded_queries;  // in whole panels
  int64_t padded_keys;

  FlashSizes(int64_t queries, int64_t keys, int64_t width, int64_t element_bytes)
      : queries(queries),
        keys(keys),
        width(width),
        depth(element_bytes == 4 ? width : round_up(width, 2)),
        columns(round_up(width, 16)),
        panels(round_up(width, kPanel) / kPanel),
        padded_queries(round_up(queries, kPanel)),
        padded_keys(round_up(keys, kPanel)) {}

  // Of one key/value head, packed for forward.
  int64_t packed_keys() const { return padded_keys * depth; }
  int64_t packed_values() const { return padded_keys * kPanel * panels; }
  int64_t packed_head() const { return packed_keys() + packed_values(); }
};

template <typename E>
int64_t packed_heads_at_once(const FlashSizes& z) {
  return std::max<int64_t>(1, kPackedBytes / (z.packed_head() * static_cast<int64_t>(sizeof(E))));
}

// Cuts one thread's memory into whole cache lines; without memory it only counts.
class ScratchCutter {
 public:
  explicit ScratchCutter(char* memory) : memory_(memory) {}
  template <typename T>
  T* next(int64_t count) {
    auto* tensor = reinterpret_cast<T*>(memory_ == nullptr ? nullptr : memory_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return tensor;
  }
  int64_t used() const { return used_; }

 private:
  char* memory_;
  int64_t used_ = 0;
};

// What a thread of forward needs for a stack of R rows.
template <typename E>
struct StackTiles {
  float* scores;  // [R, kForwardKeys], rows kScoreStride apart
  float* o;       // [R, columns]
  E* q;           // [R, depth]
  E* p16;         // [R, kForwardKeys], rows kScoreStride apart; bf16 only

  static StackTiles cut(ScratchCutter& scratch, const FlashSizes& z) {
    StackTiles t{};
    t.scores = scratch.next<float>(kStackRows * kScoreStride);
    t.o = scratch.next<float>(kStackRows * z.columns);
    t.q = scratch.next<E>(kStackRows * z.depth);
    t.p16 = scratch.next<E>(sizeof(E) == 2 ? kStackRows * kScoreStride : 0);
    return t;
  }
};

// What a thread of backward needs for one query head and its key/value head.
template <typename E>
struct HeadTiles {
  float* dk;  // [padded_keys, columns], of the key/value head
  float* dv;
  float* dq;     // panels [width, 64], of the query head
  float* lse2;   // [padded_queries]
  float* delta;  // [padded_queries]
  E* q_columns;  // panels [depth, 64]
  E* do_columns;
  E* q_rows;  // panels [padded_queries, 64], one for each 64 of width
  E* do_rows;
  E* k_rows;         // [kBackwardKeys, depth], of the key block
  E* v_rows;         // [kBackwardKeys, depth]
  E* k_columns;      // [width, kBackwardKeys]
  float* scores;     // [kBackwardKeys, 64]
  float* gradients;  // [kBackwardKeys, 64]
  uint16_t* scores16;
  uint16_t* gradients16;
  uint16_t* pairs16;

  static HeadTiles cut(ScratchCutter& scratch, const FlashSizes& z) {
    HeadTiles t{};
    t.dk = scratch.next<float>(z.padded_keys * z.columns);
    t.dv = scratch.next<float>(z.padded_keys * z.columns);
    t.dq = scratch.next<float>(z.padded_queries * z.width);
    t.lse2 = scratch.next<float>(z.padded_queries);
    t.delta = scratch.next<float>(z.padded_queries);
    t.q_columns = scratch.next<E>(z.padded_queries * z.depth);
    t.do_columns = scratch.next<E>(z.padded_queries * z.depth);
    t.q_rows = scratch.next<E>(z.padded_queries * z.panels * kPanel);
    t.do_rows = scratch.next<E>(z.padded_queries * z.panels * kPanel);
    t.k_rows = scratch.next<E>(kBackwardKeys * z.depth);
    t.v_rows = scratch.next<E>(kBackwardKeys * z.depth);
    t.k_columns = scratch.next<E>(kBackwardKeys * z.width);
    t.scores = scratch.next<float>(kBackwardKeys * kPanel);
    t.gradients = scratch.next<float>(kBackwardKeys * kPanel);
    t.scores16 = scratch.next<uint16_t>(kBackwardKeys * kPanel);
    t.gradients16 = scratch.next<uint16_t>(kBackwardKeys * kPanel);
    t.pairs16 = scratch.next<uint16_t>(kBackwardKeys * kPanel);
    return t;
  }
};

// Bytes that one thread needs for the tiles of a pass.
template <typename Tiles>
int64_t thread_bytes(const FlashSizes& z) {
  ScratchCutter counted(nullptr);
  Tiles::cut(counted, z);
  return counted.used();
}

// Bytes of a whole call: packed keys and values of `tasks` pairs of sample and key/value head, and every
// thread's tiles.
template <typename E>
int64_t flash_scratch_bytes(const FlashSizes& z, int64_t tasks, int64_t threads) {
  return std::min(packed_heads_at_once<E>(z), tasks) * z.packed_head() * static_cast<int64_t>(sizeof(E)) +
         threads * std::max(thread_bytes<StackTiles<E>>(z), thread_bytes<HeadTiles<E>>(z));
}

}  // namespace trireme
