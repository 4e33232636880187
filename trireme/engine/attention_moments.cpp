#include "trireme/engine/attention_moments.h"

#include "trireme/base/round_up.h"

namespace trireme {
namespace {

// Bytes of one tensor each: stored, or in fp32 (32); `all`: of the whole sample's tokens.
struct Buffers {
  int64_t o, o32, lse;
  int64_t kv, kv32;  // keys and values together
  int64_t all_kv, all_kv32;

  Buffers(const MemoryShape& shape, int64_t heads, int64_t kv_heads) {
    const int64_t rows = shape.batch * shape.local_tokens, all = shape.batch * shape.tokens;
    const int64_t d = shape.model.head_dim, e = shape.storage_bytes;
    o = rows * heads * d * e;
    o32 = rows * heads * d * 4;
    lse = rows * heads * 4;
    kv = 2 * rows * kv_heads * d * e;
    kv32 = 2 * rows * kv_heads * d * 4;
    all_kv = 2 * all * kv_heads * d * e;
    all_kv32 = 2 * all * kv_heads * d * 4;
  }
};

// Of query heads that one call of a GPU's kernel takes: in fp32 those of one key/value head (cuda_efficient_kernel.cpp).
int64_t heads_of_call(const MemoryShape& shape, int64_t heads, int64_t kv_heads) {
  const bool groups = shape.storage_bytes == 4 && kv_heads > 0 && heads != kv_heads;
  return groups ? round_up(heads, kv_heads) / kv_heads : heads;
}

// o of a call that is not the only one, before it is copied to its heads.
int64_t forward_workspace_bytes(const MemoryShape& shape, const Buffers& at, int64_t heads,
                                int64_t kv_heads) {
  const int64_t of_call = heads_of_call(shape, heads, kv_heads);
  return shape.fused_on_gpu && of_call < heads ? at.o / heads * of_call : 0;
}

// What a backward on a GPU holds beside its arguments and results (libtorch's attention_backward.cu and flash_api.cpp).
// FlashAttention-2 and memory-efficient attention: dq in fp32, a sum for each query, and with grouped heads dk and dv of
// every query head of the call; o and d(o) as copies where they are views of an exchange's message, and in 16 bits of
// several samples q, k and v too. Packed documents add up to 128 rows of dq each, which is not counted. What cuDNN asks
// for is known when it has planned a call; the same is counted for it.
int64_t fused_workspace_bytes(const MemoryShape& shape, const Buffers& at, int64_t heads, int64_t kv_heads) {
  if (!shape.fused_on_gpu) return 0;
  constexpr int64_t kRowBlock = 128;
  const int64_t width = shape.model.head_dim, keys = shape.gathers_keys ? shape.tokens : shape.local_tokens;
  const int64_t of_call = heads_of_call(shape, heads, kv_heads);
  const int64_t rows = shape.batch * of_call * round_up(shape.local_tokens, kRowBlock);
  const int64_t expanded =
      heads == kv_heads ? 0 : 2 * shape.batch * keys * of_call * width * shape.storage_bytes;
  int64_t copies = shape.ulysses > 1 || shape.batch > 1 ? 2 * at.o : 0;
  if (shape.batch > 1) copies += at.o + (shape.gathers_keys ? at.all_kv : at.kv);
  if (shape.storage_bytes == 4)  // d(o), o and dq of a call that is not the only one
    copies = of_call < heads ? 3 * (at.o / heads * of_call) : shape.ulysses > 1 ? 2 * at.o : 0;
  return rows * (round_up(width, width <= 128 ? 32 : 64) + 1) * 4 + expanded + copies;
}

}  // namespace

std::vector<AttentionMoment> attention_forward_moments(const MemoryShape& shape, int64_t heads,
                                                       int64_t kv_heads) {
  const Buffers at(shape, heads, kv_heads);
  if (shape.ring == 1) return {{at.o + at.lse + forward_workspace_bytes(shape, at, heads, kv_heads), 0}};
  if (shape.gathers_keys) return {{0, at.kv + 2 * at.all_kv}, {at.o + at.lse, at.all_kv}};
  const bool narrow = shape.storage_bytes != 4;
  const int64_t blocks = shape.ring > 2 ? 2 * at.kv : at.kv;   // while a part is merged
  const int64_t own = shape.fused_on_gpu ? at.o + at.lse : 0;  // of the kernel, before it is widened
  return {{at.o32 + at.lse + own, 2 * at.kv},
          {2 * (at.o32 + at.lse) + own, blocks},
          // The sum, a part, and what the merge makes of the two log-sum-exps.
          {2 * at.o32 + 6 * at.lse, blocks},
          {at.o32 + at.lse + (narrow ? at.o : 0), 0}};
}

std::vector<AttentionMoment> attention_backward_moments(const MemoryShape& shape, int64_t heads,
                                                        int64_t kv_heads) {
  const Buffers at(shape, heads, kv_heads);
  const int64_t gradients = at.o + at.kv, gradients32 = at.o32 + at.kv32;
  const int64_t workspace = fused_workspace_bytes(shape, at, heads, kv_heads);
  if (shape.ring == 1) return {{gradients + workspace, 0}};
  const int64_t rounded = shape.storage_bytes != 4 ? gradients : 0;
  if (shape.gathers_keys) {
    const int64_t own = shape.fused_on_gpu ? workspace + at.o + at.all_kv : 0;  // before they are widened
    return {{0, at.kv + 2 * at.all_kv},
            {at.o32 + at.all_kv32 + own, at.all_kv},
            // All dk and dv, in the order of places, and the blocks that come from them.
            {at.o32 + at.all_kv32, 3 * at.all_kv32 + at.kv32},
            {at.o32 + at.kv + rounded, at.kv32}};
  }
  const int64_t own = shape.fused_on_gpu ? workspace + gradients : 0;
  const int64_t blocks = shape.ring > 2 ? 2 * at.kv : at.kv;
  return {{gradients32 + own, 2 * at.kv},
          // The sum and a part; the traveller that goes and the one that comes.
          {2 * gradients32 + own, blocks + 2 * at.kv32},
          {gradients32 + rounded, 0}};
}

}  // namespace trireme
