#include "trireme/forecast/attention_snapshots.h"

#include <algorithm>
#include <limits>

#include "trireme/comm/collectives_bytes.h"
#include "trireme/kernels/attention_graph.h"
#include "trireme/kernels/backward_heads.h"
#include "trireme/kernels/cpu_flash_tiles.h"
#include "trireme/kernels/flash4_sizes.h"
#include "trireme/kernels/key_block_sizes.h"
#include "trireme/kernels/long_documents.h"
#include "trireme/kernels/mask_runs.h"
#include "trireme/kernels/score_tile_sizes.h"

namespace trireme {

namespace {

// Bytes of one tensor each: stored, or in fp32 (32); `all`: of the whole sample's tokens.
struct Buffers {
  const ForecastInputs& inputs;
  int64_t heads, kv_heads;
  int64_t gradient_bytes;
  bool wide;           // the widest heads in 16 bits
  bool efficient;      // memory-efficient attention, where it is a GPU's: these and fp32
  bool graphs;         // cuDNN's of segments
  int64_t keys;        // tokens whose keys the kernel takes
  int64_t call_heads;  // query heads that one call of a GPU's kernel takes; in backward:
  int64_t backward_call_heads;
  int64_t o, o32, lse;
  int64_t call_o;    // of call_heads
  int64_t call_kv;   // of one key/value head
  int64_t kv, kv32;  // keys and values together
  int64_t all_kv, all_kv32;
  int64_t ring_blocks;  // of keys and values, beside the first two

  Buffers(const ForecastInputs& inputs, int64_t heads, int64_t kv_heads, int64_t gradient_bytes)
      : inputs(inputs),
        heads(heads),
        kv_heads(kv_heads),
        gradient_bytes(gradient_bytes > 0 ? gradient_bytes : inputs.storage_bytes),
        wide(inputs.fused_on_gpu && !inputs.score_tiles && inputs.storage_bytes == 2 &&
             inputs.model.head_dim > kMostFlashWidth),
        efficient(wide || (inputs.storage_bytes == kFloat_bytes && !inputs.score_tiles)),
        graphs(inputs.packed_graphs && !wide),
        keys(inputs.gathers_keys ? inputs.tokens : inputs.ring_tokens) {
    const int64_t head = inputs.batch * inputs.ring_tokens * inputs.model.head_dim;
    const int64_t all_head = inputs.batch * inputs.tokens * inputs.model.head_dim;
    const int64_t e = inputs.storage_bytes;
    // Those of one key/value head (cuda_efficient_kernel.cpp).
    const bool groups = efficient && kv_heads > 0 && heads != kv_heads;
    call_heads = groups ? round_up(heads, kv_heads) / kv_heads : heads;
    // The graphs of segments take all heads.
    backward_call_heads =
        !inputs.fused_on_gpu || efficient || graphs || inputs.score_tiles
            ? call_heads
            : backward_heads(dq_rows(), inputs.batch * keys, heads, kv_heads, inputs.model.head_dim);
    o = head * heads * e;
    o32 = head * heads * kFloat_bytes;
    lse = inputs.batch * inputs.ring_tokens * heads * kFloat_bytes;
    call_o = head * call_heads * e;
    call_kv = 2 * inputs.batch * keys * inputs.model.head_dim * e;
    kv = 2 * head * kv_heads * e;
    kv32 = 2 * head * kv_heads * kFloat_bytes;
    all_kv = 2 * all_head * kv_heads * e;
    all_kv32 = 2 * all_head * kv_heads * kFloat_bytes;
    ring_blocks = inputs.ring > 2 ? 2 * kv : kv;
  }

  // Of a head's fp32 dq.
  int64_t dq_rows() const { return inputs.batch * round_up(inputs.ring_tokens, kDqRowBlock); }
  // A sample may hold a document that is a call of its own, nearly as long as the sample.
  bool documents_alone() const {
    const int64_t least = least_tokens_alone(heads, inputs.model.head_dim);
    return inputs.documents_alone && least < inputs.tokens && least <= inputs.model.causal_tokens;
  }
  // No rank has more query heads of a key/value head than the model has.
  bool by_flash4() const {
    const ModelSizes& model = inputs.model;
    return inputs.flash4 && flash4_takes_heads(model.heads, model.kv_heads, model.head_dim);
  }
  // Of a long dense call: o and lse of every block of keys of a block of rows, and what merges them.
  int64_t key_block_parts() const {
    const int64_t most = most_keys_of_block(inputs.model.head_dim), causal = inputs.model.causal_tokens;
    const bool dense = dense_takes_width(inputs.model.head_dim) && (causal == 0 || causal > most);
    if (!inputs.key_blocks || !dense || keys <= most || by_flash4()) return 0;
    const int64_t rows = std::min(inputs.ring_tokens, block_rows(inputs.ring_tokens, most));
    const int64_t row_heads = inputs.batch * rows * heads, blocks = round_up(keys, most) / most;
    const int64_t o_of_block = row_heads * inputs.model.head_dim * inputs.storage_bytes;
    const int64_t sum = row_heads * inputs.model.head_dim * kFloat_bytes;
    const int64_t lse_of_block = row_heads * kFloat_bytes;
    return blocks * (o_of_block + lse_of_block) + sum + 2 * lse_of_block;
  }
  // Of a sample or document at a time; in fp32 also where a layer slides.
  ScoreTileWorkspace of_score_tiles() const {
    const auto slides = [](int64_t window) { return window > 0; };
    if (!inputs.fused_on_gpu ||
        (!inputs.score_tiles && !(inputs.storage_bytes == kFloat_bytes && inputs.token_kernels &&
                                  std::ranges::any_of(inputs.model.layer_windows, slides))))
      return {0, 0};
    return score_tile_workspace(heads, kv_heads, inputs.model.head_dim, inputs.ring_tokens, keys,
                                inputs.storage_bytes);
  }
  // o of a call that is not the only one, before it is copied to its heads or rows.
  int64_t gpu_forward_workspace() const {
    if (!inputs.fused_on_gpu) return 0;
    if (inputs.score_tiles) return of_score_tiles().forward_bytes + (each_document_alone() ? o + lse : 0);
    // A graph's lse, row by row as it writes it; a dense call has none.
    if (graphs) return std::max(lse, key_block_parts());
    const int64_t of_a_call = call_heads < heads ? call_o : each_document_alone() ? o + lse : 0;
    return std::max(of_score_tiles().forward_bytes,
                    (documents_alone() ? o + lse : of_a_call) + key_block_parts() + wide_call_copies());
  }
  bool backward_in_calls() const {
    return backward_call_heads < heads && !efficient;  // which is counted by itself
  }
  // Of bytes of all heads what one call of backward takes.
  int64_t of_a_backward_call(int64_t bytes) const {
    return backward_in_calls() ? bytes * backward_call_heads / heads : bytes;
  }
  // Memory-efficient attention and tiles have no calls of several documents, of which one may be nearly as long as the
  // sample.
  bool each_document_alone() const {
    return inputs.fused_on_gpu && (efficient || inputs.score_tiles) && inputs.packed;
  }
  // q, k and v of a call, where 32 bits do not count their rows' elements.
  int64_t wide_call_copies() const {
    if (!wide) return 0;
    const int64_t values = keys * (heads + 2 * kv_heads) * inputs.model.head_dim;
    return values > std::numeric_limits<int32_t>::max() ? call_o + call_kv : 0;
  }
  // In backward also its dk and dv, summed over query heads, and fp32 sums of 64 keys for each of 200 blocks
  // of threads (num_splits_key in libtorch's attention_backward.cu).
  int64_t wide_call_sums() const {
    if (!wide) return 0;
    constexpr int64_t kKeys = 64, kBlocks = 200;
    const int64_t most = inputs.batch * call_heads * (round_up(keys, kKeys) / kKeys);
    const int64_t blocks = std::min(most, std::max(kBlocks, inputs.batch * call_heads));
    return (call_heads < heads ? call_kv : 0) +
           blocks * 2 * kKeys * padded_dq_width(inputs.model.head_dim) * kFloat_bytes;
  }
  // What a call of backward gives beside the whole result, with the log-sum-exp that it reads.
  int64_t gradients_of_a_call() const {
    const bool calls =
        backward_in_calls() || documents_alone() || (each_document_alone() && call_heads == heads);
    return calls ? of_a_backward_call(o + kv + lse) : 0;
  }

  // What a backward on a GPU holds beside its arguments and results (libtorch's attention_backward.cu and
  // flash_api.cpp). FlashAttention-2 and memory-efficient attention: dq in fp32, a sum for each query, and
  // with grouped heads dk and dv of every query head of the call; o and d(o) as copies where they are views
  // of an exchange's message, and in 16 bits of several samples q, k and v too. Packed documents add up to
  // 128 rows of dq each, which is not counted. cuDNN plans with the same (tests/python/test_cudnn_plans.py),
  // and its graphs of segments are given copies of q, k and v. A long backward goes in calls of a few heads
  // (kernels/backward_heads.h), whose o and d(o) are views that are copied.
  int64_t gpu_backward_workspace(bool pair) const {
    if (!inputs.fused_on_gpu) return 0;
    if (inputs.score_tiles) return of_score_tiles().backward_bytes;
    const int64_t width = inputs.model.head_dim, batch = inputs.batch;
    const int64_t of_a_head =
        backward_head_bytes(dq_rows(), batch * keys, width, heads != kv_heads, inputs.storage_bytes);
    const int64_t qkv = of_a_backward_call(o + (inputs.gathers_keys ? all_kv : kv));
    int64_t copies = pair || batch > 1 || backward_in_calls() ? of_a_backward_call(2 * o) : 0;
    if (batch > 1 || graphs) copies += qkv;
    if (efficient)  // d(o), o and dq of a call that is not the only one
      copies = (call_heads < heads ? 3 * call_o : pair ? 2 * o : 0) + wide_call_copies() + wide_call_sums();
    if (graphs)
      return graph_backward_bytes(batch * inputs.ring_tokens, batch * keys, heads, kv_heads, width) + lse +
             copies;
    // FlashAttention-4 has a second sum for each query; all else of it is no more than is counted here.
    const int64_t second_sum = by_flash4() ? dq_rows() * kFloat_bytes : 0;
    return std::max(of_score_tiles().backward_bytes, backward_call_heads * (of_a_head + second_sum) + copies);
  }

  std::vector<AttentionSnapshot> forward() const {
    if (inputs.ring == 1) return {{o + lse + gpu_forward_workspace(), 0}};
    // Causal calls of fewer rows than keys are not cuDNN's; full ones are.
    const int64_t parts =
        (inputs.model.causal_tokens == 0 ? key_block_parts() : 0) + of_score_tiles().forward_bytes;
    if (inputs.gathers_keys) return {{0, kv + 2 * all_kv}, {o + lse + parts, all_kv}};
    // Of a GPU's kernel, before they are widened.
    const int64_t narrow_results =
        inputs.fused_on_gpu ? o + lse + key_block_parts() + of_score_tiles().forward_bytes : 0;
    return {{o32 + lse + narrow_results, 2 * kv},
            {2 * (o32 + lse) + narrow_results, ring_blocks},
            // The sum, a block's results, and what the merge makes of the two log-sum-exps.
            {2 * o32 + 6 * lse, ring_blocks},
            {o32 + lse + (inputs.storage_bytes == kFloat_bytes ? 0 : o), 0}};
  }

  std::vector<AttentionSnapshot> backward(bool pair) const {
    const int64_t gradients = o + kv, gradients32 = o32 + kv32, workspace = gpu_backward_workspace(pair);
    const bool widened = gradient_bytes > inputs.storage_bytes;
    const int64_t narrow_results = inputs.fused_on_gpu ? workspace + of_a_backward_call(gradients) : 0;
    if (inputs.ring == 1 && widened) return {{gradients32 + narrow_results, 0}};
    if (inputs.ring == 1) return {{gradients + workspace + gradients_of_a_call(), 0}};
    const int64_t rounded = gradient_bytes == kFloat_bytes ? 0 : gradients;
    if (inputs.gathers_keys) {
      const int64_t narrow_results_of_all =
          inputs.fused_on_gpu ? workspace + of_a_backward_call(o + all_kv) : 0;
      int64_t summing = all_kv32;  // every rank's block
      if (inputs.rank_sums == RankSums::while_reading)
        summing = read_sum_buffer_bytes(kv32 / kFloat_bytes, kFloat_bytes, inputs.device_is_host);
      else if (inputs.rank_sums == RankSums::by_library && inputs.tokens % (2 * inputs.ring) == 0)
        summing = 0;  // NCCL sums equal rows
      return {{0, kv + 2 * all_kv},
              {o32 + all_kv32 + narrow_results_of_all, all_kv},
              // All dk and dv, also in ring order, and what their sum needs.
              {o32 + all_kv32, 2 * all_kv32 + summing + kv32},
              {o32 + kv + rounded, kv32}};
    }
    return {{gradients32 + narrow_results, 2 * kv},
            // The sum and a block's gradients; the traveller that goes and the one that comes.
            {2 * gradients32 + narrow_results, ring_blocks + 2 * kv32},
            {gradients32 + rounded, 0}};
  }

  int64_t flash_workspace() const {
    if (inputs.flash_threads == 0 || inputs.ring_tokens == 0 || keys == 0) return 0;
    const FlashSizes sizes(inputs.ring_tokens, keys, inputs.model.head_dim, inputs.flash_element_bytes);
    const int64_t tasks = inputs.batch * kv_heads;
    return inputs.flash_element_bytes == kFloat_bytes
               ? flash_scratch_bytes<float>(sizes, tasks, inputs.flash_threads)
               : flash_scratch_bytes<uint16_t>(sizes, tasks, inputs.flash_threads);
  }
};

}  // namespace

AttentionSnapshots attention_snapshots(const ForecastInputs& inputs, int64_t heads, int64_t kv_heads,
                                       int64_t gradient_bytes) {
  const Buffers buffers(inputs, heads, kv_heads, gradient_bytes);
  return {buffers.forward(), buffers.backward(/*pair=*/false), buffers.backward(/*pair=*/true),
          buffers.flash_workspace()};
}

}  // namespace trireme
