#include "trireme/plan/attention_work.h"

#include <algorithm>

#include "trireme/kernels/delta_rule_bytes.h"
#include "trireme/kernels/score_tile_sizes.h"

namespace trireme {

void AttentionWork::take_qkv() {
  copy_shared_keys();
  part_gates();
  if (!chunked()) send_qkv();
}

void AttentionWork::part_gates() {
  if (kind_.gate_width() > 0) count_.token_wise(WorkKind::copy, kind_.qkv_width() + kind_.gate_width());
}

void AttentionWork::forward() {
  if (chunked()) send_qkv();
  attend(WorkKind::attention_forward, 4);
  add_up_rounds(kind_.query_width(), 5 * kFloat_bytes);  // o of the sum is read twice and written twice
  count_.send(TrafficKind::ring, ring_calls(), static_cast<double>(kind_.ring.forward));
  count_.send(exchange(), messages(), static_cast<double>(kind_.ulysses.o_to_seq));
  if (exchanges()) count_.token_wise(WorkKind::copy, kind_.query_width());
}

void AttentionWork::gate() {
  if (kind_.gate_width() > 0) count_.token_wise(WorkKind::activation, kind_.gate_width());
  if (kind_.delta_net) count_.token_wise(WorkKind::norm, kind_.query_width());
}

void AttentionWork::backward(const SavedSlots& slots) {
  if (chunked()) send_qkv();
  // do, and o where it is not there by heads
  const int sent = !kind_.delta_net && (chunked() || (slots[kO] && !slots[kOHeads])) ? 2 : 1;
  if (kind_.gate_width() > 0) count_.token_wise(WorkKind::activation_backward, kind_.gate_width());
  if (kind_.delta_net) count_.token_wise(WorkKind::norm_backward, kind_.query_width());
  count_.send(exchange(), messages(), static_cast<double>(sent * kind_.ulysses.do_to_heads));
  attend(WorkKind::attention_backward, 10);
  add_up_rounds(kind_.qkv_width(), 3 * kFloat_bytes);
  count_.send(TrafficKind::ring, 2 * ring_calls(), static_cast<double>(kind_.ring.backward));
  count_.send(exchange(), messages(), static_cast<double>(kind_.ulysses.dqkv_to_seq));
  count_.token_wise(WorkKind::copy, kind_.qkv_width());  // dq, dk and dv are joined
  copy_shared_keys();
  if (exchanges())  // packed and, key by key, added up
    count_.token_wise(WorkKind::copy,
                      static_cast<double>(sent) * kind_.query_width() + 2 * kind_.qkv_width());
}

// Into a layer that takes them; their gradients are added up.
void AttentionWork::copy_shared_keys() {
  if (kind_.heads.share_keys) count_.token_wise(WorkKind::copy, 2 * kind_.key_width());
}

void AttentionWork::send_qkv() {
  count_.send(exchange(), messages(), static_cast<double>(kind_.ulysses.qkv_to_heads));
  if (exchanges()) count_.token_wise(WorkKind::copy, kind_.qkv_width());
}

// The rule's products are of 64 tokens, all in fp32; each value of a head is read and written by some dozen
// operations beside them. An estimate: no profile measures it.
void AttentionWork::mix_columns(double passes) {
  const DeltaHeads& heads = kind_.delta_net->heads;
  const auto head_tokens = static_cast<double>(in_.batch * in_.tokens * kind_.rank_value_heads);
  count_.add(WorkKind::matmul, kDeltaChunk_tokens, kDeltaChunk_tokens,
             passes * head_tokens * delta_rule_forward_flops(heads.key_width, heads.value_width));
  count_.add(WorkKind::copy, count_.tile_rows * kind_.query_width(), 0,
             passes * 12 * head_tokens * static_cast<double>(heads.key_width + heads.value_width));
}

void AttentionWork::attend(WorkKind kind, double flops_a_pair_and_value) {
  if (kind_.delta_net) return mix_columns(kind == WorkKind::attention_forward ? 1 : 4);
  const double document =
      count_.step.document_tokens > 0 ? count_.step.document_tokens : static_cast<double>(in_.tokens);
  const double pairs =
      kind_.pairs * static_cast<double>(in_.batch * kind_.rank_heads) / static_cast<double>(in_.ring);
  const auto width = static_cast<double>(kind_.heads.width);
  if (in_.score_tiles)
    return attend_by_tiles(kind, flops_a_pair_and_value * width, pairs + hidden_pairs_of_tiles(document));
  count_.add(kind, document / in_.ring, width, flops_a_pair_and_value * width * pairs);
}

// Of all heads of a layer, on average: a block of rows is cut by the diagonal and by a window's other end,
// and half of the square there is hidden.
double AttentionWork::hidden_pairs_of_tiles(double document) const {
  const double rows = std::min(
      document, static_cast<double>(score_tile_sizes(kind_.rank_heads, in_.ring_tokens, in_.tokens).rows));
  const auto sliding =
      static_cast<double>(std::ranges::count_if(in_.model.layer_windows, [&](int64_t window) {
        return window > 0 && static_cast<double>(window) < document;
      }));
  const double ends = 1 + sliding / static_cast<double>(in_.model.layers);
  return rows / 2 * ends * static_cast<double>(in_.batch * in_.ring_tokens * kind_.rank_heads);
}

// Products of matrices, and the traffic of scores between them. An estimate: no profile measures it.
void AttentionWork::attend_by_tiles(WorkKind kind, double flops_a_pair, double pairs) {
  count_.add(WorkKind::matmul, static_cast<double>(kind_.heads.width), static_cast<double>(kScoreTile_keys),
             flops_a_pair * pairs);
  const ScoreTraffic score = score_traffic(in_.storage_bytes);
  const int64_t score_bytes =
      kind == WorkKind::attention_forward ? score.forward_bytes : score.backward_bytes;
  const auto copied_bytes = static_cast<double>(2 * in_.storage_bytes);  // a value is read and written
  count_.add(WorkKind::copy, pairs, 0, static_cast<double>(score_bytes) / copied_bytes * pairs);
}

// attention/ring_attention.cpp: each round's results are added to fp32 sums, after a GPU's 16 bits are
// widened. In copies of a value, which read and write one.
void AttentionWork::add_up_rounds(double width, double bytes) {
  if (in_.ring == 1 || in_.gathers_keys || kind_.delta_net) return;
  const double widened = in_.fused_on_gpu && in_.storage_bytes == 2 ? 2 + kFloat_bytes : 0;
  const double values = count_.rows * width, of_copy = 2 * static_cast<double>(in_.tile_bytes);
  count_.add(WorkKind::copy, values, 0, ring_calls() * values * (widened + bytes) / of_copy);
}

}  // namespace trireme
