#include "trireme/forecast/layer_buffers.h"

#include <algorithm>

#include "trireme/attention/delta_heads.h"
#include "trireme/forecast/layer_kinds.h"

namespace trireme {

LayerBuffers::LayerBuffers(const ForecastInputs& inputs)
    : alone(inputs.ulysses == 1),
      chunked(inputs.head_chunks > 1 && !inputs.model.delta_net),
      ring(inputs.ring > 1),
      delta_net(inputs.model.delta_net.has_value()) {
  const ModelSizes& model = inputs.model;
  const int64_t rows = inputs.batch * inputs.shard_tokens, ring_rows = inputs.batch * inputs.ring_tokens;
  const int64_t d = model.head_dim, e = inputs.storage_bytes;
  x = rows * model.hidden * e;
  qkv = rows * (model.heads + 2 * model.kv_heads) * d * e;
  qkv_heads = ring_rows * (inputs.rank_heads + 2 * inputs.rank_kv_heads) * d * e;
  o = rows * model.heads * d * e;
  o_heads = ring_rows * inputs.rank_heads * d * e;
  lse = ring_rows * inputs.rank_heads * kFloat_bytes;
  packed = rows * inputs.packed_heads * d * e;
  ranks_overlap = inputs.packed_heads > model.heads + 2 * model.kv_heads;
  overlap_sums = rows * 2 * model.kv_heads * d * kFloat_bytes;
  kv = rows * 2 * model.kv_heads * d * e;
  kv_sums = rows * 2 * model.kv_heads * d * kFloat_bytes;
  overlap_block = e == kFloat_bytes ? 0 : rows * inputs.rank_kv_heads * d * kFloat_bytes;
  gate = rows * model.common_heads().gate_width() * e;
  if (delta_net) set_delta_net(inputs, rows * e);
  x1 = rows * model.hidden * inputs.tile_bytes;
  mlp = rows * model.mlp_kept_width * inputs.tile_bytes;
}

int64_t LayerBuffers::kept(const SavedSlots& slots) const {
  int64_t bytes = 0;
  if (slots[kX]) bytes += x;
  if (slots[kO]) bytes += o;
  if (slots[kLse]) bytes += lse;
  if (slots[kQkv]) bytes += rank_qkv();
  if (slots[kOHeads] && !alone && !chunked && !delta_net) bytes += o_heads;
  if (slots[kGate]) bytes += gate;
  if (slots[kX1]) bytes += x1;
  if (slots[kGateUp]) bytes += mlp;
  return bytes;
}

// engine/sharded_delta_net.h
void LayerBuffers::set_delta_net(const ForecastInputs& inputs, int64_t row_bytes) {
  const DeltaHeads& heads = inputs.model.delta_net->heads;
  const int ranks = inputs.ulysses * inputs.ring;
  const DeltaShare share = delta_share(heads, inputs.sp_rank, ranks);
  const int64_t all_rows_bytes = inputs.batch * inputs.tokens * inputs.storage_bytes;
  const ColumnShares shares = delta_columns(heads, ranks);
  const int64_t total = shares.total();
  alone = ranks == 1;
  qkv = row_bytes * heads.columns();
  qkv_heads = all_rows_bytes * share.columns(heads);
  o = gate = row_bytes * heads.output_columns();
  o_heads = all_rows_bytes * share.value.size() * heads.value_width;
  lse = 0;
  packed = row_bytes * total;
  ranks_overlap = total > heads.columns();
  // All columns are summed then: of 16 bits in fp32, span by span.
  const bool narrow = inputs.storage_bytes < kFloat_bytes;
  const int64_t rows = inputs.batch * inputs.shard_tokens;
  int64_t widest = 0;
  for (const std::vector<HeadRange>& spans : shares.of_rank)
    for (const HeadRange& span : spans) widest = std::max(widest, span.size());
  overlap_sums = narrow ? rows * heads.columns() * kFloat_bytes : 0;
  overlap_block = narrow ? rows * widest * kFloat_bytes : 0;
}

std::vector<int64_t> kept_bytes_of_layers(const ForecastInputs& inputs) {
  const LayerKinds kinds = layer_kinds(inputs);
  const std::vector<LayerBuffers> buffers(kinds.inputs.begin(), kinds.inputs.end());
  std::vector<int64_t> kept;
  for (int64_t layer = 0; layer < inputs.recompute.layers; ++layer)
    kept.push_back(
        buffers[kinds.of_layer.at(static_cast<size_t>(layer))].kept(inputs.recompute.kept_by_forward(layer)));
  return kept;
}

std::vector<int64_t> leaving_bytes_of_layers(const ForecastInputs& inputs) {
  std::vector<int64_t> leaving = kept_bytes_of_layers(inputs);
  std::erase(leaving, 0);
  leaving.resize(leaving.size() - std::min(leaving.size(), static_cast<size_t>(inputs.resident_layers)));
  return leaving;
}

}  // namespace trireme
