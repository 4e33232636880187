// Exact attention on the CPU in tiles: scores exist only as blocks that lie in cache (FlashAttention, arXiv
// 2205.14135 and 2307.08691). Blocks that no query of a tile sees are skipped, so that the cost of windows,
// documents and sparse layouts is proportional to what they keep. Grouped query heads share one packed copy
// of their key/value head.
//
//   forward    one query block of 64 tokens and up to two heads at a time, over its keys
//   backward   one key/value head at a time, over its key blocks; dk, dv, dq in fp32
//
// Inputs fp32, bf16 or fp16; sums and softmax in fp32. The products of bf16 inputs run in bf16 where the
// processor has instructions for them (AMX, AVX512-BF16), otherwise in fp32. Two runs on the same machine
// with the same number of threads give the same bits.
#pragma once

#include <atomic>

#include <ATen/Parallel.h>

#include "trireme/device/memory_account.h"
#include "trireme/kernels/cpu_flash_tiles.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/kernels/softmax_tile.h"
#include "trireme/kernels/tile_gemm.h"

namespace trireme {

// Memory of one thread, kept from call to call.
class Scratch {
 public:
  // At least `count` elements, 64-byte aligned; what they held is lost.
  template <typename T>
  T* get(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (!buffer_.defined() || buffer_.numel() < bytes) {
      buffer_ = at::Tensor();  // the old one goes before the new one comes
      buffer_ = at::empty({bytes}, at::kByte);
    }
    return reinterpret_cast<T*>(buffer_.mutable_data_ptr<uint8_t>());
  }

 private:
  at::Tensor buffer_;
};

class CpuFlashAttention final : public LocalAttention {
 public:
  explicit CpuFlashAttention(at::ScalarType dtype);
  // For tests of every path on one machine. Without `units` tiles are multiplied in fp32.
  CpuFlashAttention(at::ScalarType dtype, std::optional<Bf16Units> units, const TileMath& math);

  std::string name() const override;
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const AttentionSpec& spec) override;

 private:
  template <typename I, typename E>
  void forward_in(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpec& spec,
                  const AttentionOutput& out);
  template <typename I, typename E>
  void backward_in(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const AttentionOutput& saved, const AttentionSpec& spec,
                   const AttentionGradients& gradients);
  Bf16Units units() const { return units_.value_or(Bf16Units::loops); }
  void check_call(const at::Tensor& q, const AttentionSpec& spec) const;

  at::ScalarType dtype_;
  std::optional<Bf16Units> units_;
  const TileMath& math_;
  Scratch shared_;                // packed keys and values of the heads at work
  std::vector<Scratch> threads_;  // one a thread
};

// A thread's tiles of one pass.
template <typename Tiles>
Tiles cut_scratch(Scratch& scratch, const FlashSizes& z) {
  ScratchCutter memory(scratch.get<char>(thread_bytes<Tiles>(z)));
  return Tiles::cut(memory, z);
}

// The row of one token and head in x [B, S, H, D].
template <typename I>
const I* rows_of(const at::Tensor& x, int64_t batch, int64_t token, int64_t head) {
  return x.const_data_ptr<I>() + batch * x.stride(0) + token * x.stride(1) + head * x.stride(2);
}

// body(first element of `result`), in the result's own type: fp32 or I.
template <typename I, typename Body>
void with_elements_of(const at::Tensor& result, const Body& body) {
  if constexpr (!std::is_same_v<I, float>)
    if (result.scalar_type() == at::kFloat) return body(result.mutable_data_ptr<float>());
  body(result.mutable_data_ptr<I>());
}

// to[i] = factor from[i], in the type of a result.
template <typename O>
void write_row(const TileMath& math, const float* from, float factor, int64_t count, O* to) {
  if constexpr (std::is_same_v<O, at::BFloat16>)
    math.scale_to_bf16(from, factor, count, reinterpret_cast<uint16_t*>(to));
  else
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<O>(from[i] * factor);
}

inline ScoreRule score_rule(const AttentionSpec& spec) {
  return {static_cast<float>(spec.scores.scale), static_cast<float>(spec.scores.cap)};
}

// Threads that a loop started here can use.
int attention_threads();

// Runs body(worker, item) for every item in [0, items): items go to whichever worker is free, in order.
template <typename Body>
void share_items(int workers, int64_t items, const Body& body) {
  std::atomic<int64_t> next{0};
  const MemoryOwner owner = MemoryScope::current();
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    const MemoryScope scope(owner);  // what a worker allocates is this call's
    for (int64_t worker = begin; worker < end; ++worker)
      for (int64_t item = next++; item < items; item = next++) body(static_cast<int>(worker), item);
  });
}

}  // namespace trireme
