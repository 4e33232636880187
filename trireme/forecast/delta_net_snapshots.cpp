#include "trireme/forecast/delta_net_snapshots.h"

#include <algorithm>

#include "trireme/attention/delta_heads.h"
#include "trireme/kernels/causal_convolution_bytes.h"
#include "trireme/kernels/delta_rule_bytes.h"

namespace trireme {

AttentionSnapshots delta_net_snapshots(const ForecastInputs& inputs) {
  const DeltaHeads& heads = inputs.model.delta_net->heads;
  const DeltaShare share = delta_share(heads, inputs.sp_rank, inputs.ulysses * inputs.ring);
  const int64_t tokens = inputs.batch * inputs.tokens, e = inputs.storage_bytes;
  const DeltaRuleSizes rule{
      .batch = inputs.batch,
      .tokens = inputs.tokens,
      .key_heads = share.key.size(),
      .value_heads = share.value.size(),
      .key_width = heads.key_width,
      .value_width = heads.value_width,
      .segment_chunks = delta_segment_chunks(inputs.device_is_host, inputs.batch * share.value.size()),
      .spread = even_key_group(key_of_value(heads, share), share.key.size()) == 0};
  const int64_t of_heads = tokens * share.value.size() * kFloat_bytes;  // a number of each head
  const int64_t gates = 3 * of_heads;                                   // a, decay, beta
  const int64_t qkv = tokens * share.convolved_columns(heads) * e;
  const int64_t o = tokens * share.value.size() * heads.value_width * e;
  const int64_t dcolumns = tokens * share.columns(heads) * e;
  const ConvolutionBlocks blocks{.widened = e < kFloat_bytes, .masked = inputs.packed};
  const int64_t block =
      convolution_block_bytes(inputs.tokens, share.convolved_columns(heads), inputs.device_is_host);
  const int64_t held = gates + dcolumns + qkv + delta_rule_states_bytes(rule);
  const int64_t again = held + o + delta_rule_forward_bytes(rule);
  // dq, dk, dv; d(decay), d(beta)
  const int64_t back = held + qkv + 2 * of_heads + delta_rule_backward_bytes(rule);
  const int64_t joined = gates + dcolumns + 2 * qkv + 4 * of_heads;
  const int64_t filtered = gates + dcolumns + qkv + blocks.backward() * block;
  AttentionSnapshots snapshots;
  snapshots.forward = {
      {gates + qkv + std::max(blocks.forward() * block, o + delta_rule_forward_bytes(rule)), 0}};
  snapshots.backward = {{std::max({again, back, joined, filtered}), 0}};
  return snapshots;
}

}  // namespace trireme
