#include "bench/incumbents/incumbent_layer.h"

#include <algorithm>

#include "trireme/base/round_up.h"

namespace trireme {
namespace {

constexpr std::string_view kLlamaLayer = "modeling_llama.py LlamaDecoderLayer.forward";
constexpr std::string_view kLlamaAttention = "modeling_llama.py LlamaAttention.forward";
constexpr std::string_view kLlamaNorm = "modeling_llama.py LlamaRMSNorm.forward";
constexpr std::string_view kLlamaNormBackward = "autograd of LlamaRMSNorm";
constexpr std::string_view kLigerNorm = "liger ops/rms_norm.py rms_norm_forward";
constexpr std::string_view kLlamaRotation = "modeling_llama.py apply_rotary_pos_emb";
constexpr std::string_view kUlyssesExchange = "ulysses_sp.py _combine_local_sequences, _DimZeroAllToAll";
constexpr std::string_view kFlash = "flash_api.cpp mha_fwd";
constexpr std::string_view kFlashBackward = "flash_api.cpp mha_bwd";
constexpr std::string_view kSdpa = "sdpa_attention.py sdpa_attention_forward, repeat_kv and .contiguous()";
constexpr std::string_view kSdpaBackward = "autograd of repeat_kv";
constexpr std::string_view kLlamaMlp = "modeling_llama.py LlamaMLP.forward";
constexpr std::string_view kLlamaMlpBackward = "autograd of LlamaMLP";
constexpr std::string_view kLinearBackward = "zero/linear.py LinearFunctionForZeroStage3.backward";
constexpr std::string_view kTiledMlp = "ulysses_sp.py TiledMLP";

}  // namespace

LayerBytes::LayerBytes(const IncumbentRun& run)
    : tokens(run.rank_tokens()),
      sample_tokens(tokens * run.sequence_ranks),
      rank_heads(run.model.heads / run.sequence_ranks),
      shared(run.sequence_ranks > 1) {
  const ModelSizes& model = run.model;
  const int64_t rank_kv_heads = std::max<int64_t>(1, model.kv_heads / run.sequence_ranks);
  const bool fewer = rank_heads != rank_kv_heads, sdpa = run.policy.flash == FlashAttention::torch_sdpa;
  groups = fewer && !sdpa;
  repeats = fewer && sdpa;
  hidden = 2 * tokens * model.hidden;
  query = 2 * tokens * model.heads * model.head_dim;
  key = 2 * tokens * model.kv_heads * model.head_dim;
  shared_key = 2 * sample_tokens * rank_kv_heads * model.head_dim;
  used_key = repeats ? query : shared ? shared_key : key;
  mlp = 2 * tokens * model.intermediate;
  lse = 4 * sample_tokens * rank_heads;
}

Held IncumbentLayer::norm(int64_t bytes, int64_t rows, bool keep, NormKept& kept) {
  if (run_.policy.liger_kernels) {
    Held output = trace_.hold("norm's output", kLigerNorm, bytes);
    Held reciprocal = trace_.hold("norm's RSTD, fp32", kLigerNorm, 4 * rows);
    if (keep) kept.reciprocal = std::move(reciprocal);
    return output;
  }
  Held wide = trace_.hold("norm's input, fp32", kLlamaNorm, 2 * bytes);
  trace_.hold("its squares, fp32", kLlamaNorm, 2 * bytes);
  Held wide_scaled = trace_.hold("scaled, fp32", kLlamaNorm, 2 * bytes);
  if (keep)
    kept.wide = std::move(wide);
  else
    wide.release();
  Held scaled = trace_.hold("scaled, bf16", kLlamaNorm, bytes);
  wide_scaled.release();
  Held output = trace_.hold("norm's output", kLlamaNorm, bytes);
  if (keep) kept.scaled = std::move(scaled);
  return output;
}

Held IncumbentLayer::norm_backward(int64_t bytes, NormKept kept, Held d_output) {
  if (run_.policy.liger_kernels) return d_output;  // ops/rms_norm.py: in place
  Held d_scaled = trace_.hold("gradient of scaled, bf16", kLlamaNormBackward, bytes);
  trace_.hold("gradient of the norm's weight, of each token", kLlamaNormBackward, bytes);
  d_output.release();
  kept.scaled.release();
  Held d_wide_scaled = trace_.hold("gradient of scaled, fp32", kLlamaNormBackward, 2 * bytes);
  d_scaled.release();
  Held d_wide = trace_.hold("gradient of the norm's input, fp32", kLlamaNormBackward, 2 * bytes);
  trace_.hold("gradient of the reciprocal, of each value", kLlamaNormBackward, 2 * bytes);
  d_wide_scaled.release();
  Held d_mean = trace_.hold("gradient of the mean, of each value", kLlamaNormBackward, 2 * bytes);
  Held power = trace_.hold("input to the power of one, fp32", kLlamaNormBackward, 2 * bytes);
  Held twice = trace_.hold("twice the input, fp32", kLlamaNormBackward, 2 * bytes);
  power.release();
  Held d_square = trace_.hold("gradient by the squares, fp32", kLlamaNormBackward, 2 * bytes);
  twice.release();
  d_mean.release();
  kept.wide.release();
  d_square.release();  // added to the other, in place
  return trace_.hold("gradient of the norm's input", kLlamaNormBackward, bytes);
}

// The two tensors that are added stay until their sum is there; a half is turned about.
Held IncumbentLayer::rotate(int64_t bytes) {
  Held by_cosine = trace_.hold("query or key by cosine", kLlamaRotation, bytes);
  Held half = trace_.hold("negated half", kLlamaRotation, bytes / 2);
  Held turned = trace_.hold("turned query or key", kLlamaRotation, bytes);
  half.release();
  Held by_sine = trace_.hold("turned by sine", kLlamaRotation, bytes);
  turned.release();
  return trace_.hold("rotated query or key", kLlamaRotation, bytes);
}

Held IncumbentLayer::rotate_backward(int64_t bytes, Held d_output) {
  constexpr std::string_view kSource = "autograd of apply_rotary_pos_emb";
  if (run_.policy.liger_kernels) {
    if (!bytes_.shared) return d_output;  // ops/rope.py rope_backward: in place
    return trace_.hold("gradient of query or key, contiguous", "liger ops/rope.py rope_backward", bytes);
  }
  Held d_turned = trace_.hold("gradient of turned", kSource, bytes);
  Held half = trace_.hold("gradient of a half", kSource, bytes / 2);
  Held first = trace_.hold("gradient of turned, whole", kSource, bytes);
  trace_.hold("gradient of the other half, whole", kSource, bytes);
  half.release();
  d_turned.release();
  Held d_input = trace_.hold("gradient by cosine", kSource, bytes);
  return d_input;
}

// One tensor trades sequence for heads; what is received is laid out anew.
Held IncumbentLayer::exchange(int64_t bytes, int64_t repeated_bytes) {
  Held repeated;
  if (repeated_bytes > 0)
    repeated = trace_.hold("repeated key/value heads", kUlyssesExchange, repeated_bytes);
  Held packed = trace_.hold("packed for an all-to-all", kUlyssesExchange, bytes);
  repeated.release();
  return trace_.hold("received from an all-to-all", kUlyssesExchange, bytes);
}

// empty_like of a gradient that is not contiguous, made contiguous, and the gradient made so too.
Held IncumbentLayer::exchange_backward(int64_t bytes) {
  Held like = trace_.hold("empty_like, not contiguous", kUlyssesExchange, bytes);
  Held received = trace_.hold("received from an all-to-all", kUlyssesExchange, bytes);
  like.release();
  trace_.hold("packed for an all-to-all", kUlyssesExchange, bytes);
  return received;
}

// Qwen3's norms of query and key; Liger's keeps what it was given (ops/rms_norm.py
// LigerRMSNormFunction.forward).
Held IncumbentLayer::normed_heads(Held projected, int64_t bytes, int64_t rows, bool keep, NormKept& kept) {
  if (!run_.model.qk_norm) return projected;
  Held normed = norm(bytes, rows, keep, kept);
  if (keep && run_.policy.liger_kernels) kept.input = std::move(projected);
  return normed;
}

// What autograd keeps of a key or value under sdpa; who called holds the one that was repeated until it
// returns.
Held IncumbentLayer::repeated_heads(std::string_view name) {
  return bytes_.repeats ? trace_.hold(name, kSdpa, bytes_.used_key) : Held{};
}

Held IncumbentLayer::attention(bool keep, Kept& kept) {
  const LayerBytes& b = bytes_;
  const bool rotates_in_place = run_.policy.liger_kernels;
  Held query = normed_heads(trace_.hold("query", kLlamaAttention, b.query), b.query,
                            b.tokens * run_.model.heads, keep, kept.query_norm);
  Held key = normed_heads(trace_.hold("key", kLlamaAttention, b.key), b.key, b.tokens * run_.model.kv_heads,
                          keep, kept.key_norm);
  Held value = trace_.hold("value", kLlamaAttention, b.key);
  if (!rotates_in_place) {
    Held rotated_query = rotate(b.query);
    key = rotate(b.key);
    query = std::move(rotated_query);
  }
  if (!b.shared) {
    Held repeated_key = repeated_heads("repeated key"), repeated_value = repeated_heads("repeated value");
    Held attended = trace_.hold("attention's output", kFlash, b.query);
    Held lse = trace_.hold("attention's log-sum-exp, fp32", kFlash, b.lse);
    Held output = trace_.hold("attention's projection", kLlamaAttention, b.hidden);
    if (keep) {
      kept.query = std::move(query);
      kept.key = std::move(b.repeats ? repeated_key : key);
      kept.value = std::move(b.repeats ? repeated_value : value);
      kept.attended = std::move(attended);
      kept.lse = std::move(lse);
    }
    return output;
  }
  const int64_t positions = 8 * b.sample_tokens, repeated = b.shared_key > b.key ? b.shared_key : 0;
  Held gathered = trace_.hold("gathered position_ids", "ulysses_sp.py forward", positions);
  Held joined = trace_.hold("joined position_ids", "ulysses_sp.py forward", positions);
  Held shared_query = exchange(b.query, 0), shared_key = exchange(b.shared_key, repeated),
       shared_value = exchange(b.shared_key, repeated);
  constexpr std::string_view kContiguous = "ulysses_sp.py forward, .contiguous()";
  shared_query = trace_.hold("query of a rank's heads", kContiguous, b.query);
  shared_key = trace_.hold("key of a rank's heads", kContiguous, b.shared_key);
  shared_value = trace_.hold("value of a rank's heads", kContiguous, b.shared_key);
  if (run_.policy.flash != FlashAttention::torch_sdpa)
    trace_.hold("differences of positions", "modeling_flash_attention_utils.py", positions + b.sample_tokens);
  Held repeated_key = repeated_heads("repeated key"), repeated_value = repeated_heads("repeated value");
  Held attended = trace_.hold("attention's output", kFlash, b.query);
  Held lse = trace_.hold("attention's log-sum-exp, fp32", kFlash, b.lse);
  Held context = trace_.hold("context of a rank's heads", "ulysses_sp.py forward, .reshape()", b.query);
  Held received =
      trace_.hold("received from an all-to-all", "ulysses_sp.py _partition_global_sequence", b.query);
  Held joined_heads =
      trace_.hold("context of all heads", "ulysses_sp.py _partition_global_sequence", b.query);
  for (Held* gone : {&received, &context, &gathered, &joined}) gone->release();
  Held output = trace_.hold("attention's projection", kLlamaAttention, b.hidden);
  if (keep) {
    kept.query = std::move(shared_query);
    kept.key = std::move(b.repeats ? repeated_key : shared_key);
    kept.value = std::move(b.repeats ? repeated_value : shared_value);
    kept.attended = std::move(attended);
    kept.lse = std::move(lse);
    kept.projected_input = std::move(joined_heads);
  }
  return output;
}

// One tile of TiledMLP: forward gives the MLP's output on `tokens` tokens, backward makes its gradients too.
Held IncumbentLayer::tile(int64_t tokens, bool backward) {
  const int64_t wide = 2 * tokens * run_.model.intermediate, narrow = 2 * tokens * run_.model.hidden;
  const int64_t weight = 2 * run_.model.hidden * run_.model.intermediate;
  Held gate = trace_.hold("tile of gate", kLlamaMlp, wide);
  Held silu = trace_.hold("tile of silu(gate)", kLlamaMlp, wide);
  if (!backward) gate.release();
  Held up = trace_.hold("tile of up", kLlamaMlp, wide);
  Held product = trace_.hold("tile of the product", kLlamaMlp, wide);
  if (!backward) {
    silu.release();
    up.release();
    return trace_.hold("tiles of the MLP's output", kTiledMlp, narrow);
  }
  const Held result = trace_.hold("tile of the MLP's output", kTiledMlp, narrow);
  Held d_product = trace_.hold("tile of the product's gradient", kLlamaMlpBackward, wide);
  trace_.hold("gradient of a matrix, of a tile", kLinearBackward, weight);
  product.release();
  Held d_silu = trace_.hold("tile of silu's gradient", kLlamaMlpBackward, wide);
  Held d_up = trace_.hold("tile of up's gradient", kLlamaMlpBackward, wide);
  for (Held* gone : {&silu, &up, &d_product}) gone->release();
  Held d_input = trace_.hold("tile of the input's gradient", kLinearBackward, narrow);
  trace_.hold("gradient of a matrix, of a tile", kLinearBackward, weight);
  d_up.release();
  const Held d_gate = trace_.hold("tile of gate's gradient", kLlamaMlpBackward, wide);
  trace_.hold("gradient of a matrix, of a tile", kLinearBackward, weight);
  return {};
}

Held IncumbentLayer::mlp(bool keep, Kept& kept) {
  const LayerBytes& b = bytes_;
  if (run_.policy.tiled_mlp) {
    // tiled_compute.py: ceil(s / M) tiles. Two are followed; the others take the same again.
    const int64_t tiles = (b.tokens + run_.model.hidden - 1) / run_.model.hidden;
    const int64_t tile_tokens = (b.tokens + tiles - 1) / tiles;
    Held second, others;
    const Held first = tile(tile_tokens, /*backward=*/false);
    if (tiles > 1) second = tile(std::min(tile_tokens, b.tokens - tile_tokens), /*backward=*/false);
    if (tiles > 2)
      others = trace_.hold("tiles of the MLP's output", kTiledMlp,
                           2 * (b.tokens - 2 * tile_tokens) * run_.model.hidden);
    return trace_.hold("MLP's output, tiles joined", kTiledMlp, b.hidden);
  }
  Held gate = trace_.hold("gate", kLlamaMlp, b.mlp), silu, up, product;
  if (run_.policy.liger_kernels) {
    up = trace_.hold("up", kLlamaMlp, b.mlp);
    product = trace_.hold("product", "liger ops/swiglu.py swiglu_forward", b.mlp);
  } else {
    silu = trace_.hold("silu(gate)", kLlamaMlp, b.mlp);
    if (!keep) gate.release();
    up = trace_.hold("up", kLlamaMlp, b.mlp);
    product = trace_.hold("product", kLlamaMlp, b.mlp);
  }
  if (!keep)
    for (Held* gone : {&gate, &silu, &up}) gone->release();
  Held output = trace_.hold("MLP's output", kLlamaMlp, b.hidden);
  if (keep) {
    kept.gate = std::move(gate);
    kept.silu = std::move(silu);
    kept.up = std::move(up);
    kept.product = std::move(product);
  }
  return output;
}

Held IncumbentLayer::run_layer(bool keep, Kept& kept) {
  Held normed = norm(bytes_.hidden, bytes_.tokens, keep, kept.norm1);
  Held branch = attention(keep, kept);
  if (keep)
    kept.normed1 = std::move(normed);
  else
    normed.release();
  Held sum = trace_.hold("input and attention, added", kLlamaLayer, bytes_.hidden);
  branch = norm(bytes_.hidden, bytes_.tokens, keep, kept.norm2);
  Held projected = mlp(keep, kept);
  if (keep)
    kept.normed2 = std::move(branch);
  else
    branch.release();
  Held output = trace_.hold("layer's output", kLlamaLayer, bytes_.hidden);
  if (keep && run_.policy.liger_kernels) kept.sum1 = std::move(sum);
  return output;
}

Held IncumbentLayer::forward() {
  Kept none;
  return run_layer(false, none);
}

void IncumbentLayer::weight_gradient(int64_t inputs, int64_t outputs) {
  zero_.add_gradient(trace_.hold("gradient of a matrix, bf16", kLinearBackward, 2 * inputs * outputs),
                     inputs * outputs);
}

Held IncumbentLayer::mlp_backward(Kept& kept) {
  const LayerBytes& b = bytes_;
  const int64_t hidden = run_.model.hidden, width = run_.model.intermediate;
  if (run_.policy.tiled_mlp) {
    Held d_input = trace_.hold("gradient of the MLP's input", kTiledMlp, b.hidden);
    std::vector<Held> sums;
    sums.reserve(3);
    for (int matrix = 0; matrix < 3; ++matrix)
      sums.push_back(trace_.hold("gradients of matrices, summed over tiles", kTiledMlp, 2 * hidden * width));
    const int64_t tiles = (b.tokens + hidden - 1) / hidden;
    tile((b.tokens + tiles - 1) / tiles, /*backward=*/true);
    for (Held& sum : sums) zero_.add_gradient(std::move(sum), hidden * width);
    kept.normed2.release();
    return d_input;
  }
  Held d_product = trace_.hold("gradient of the product", kLinearBackward, b.mlp);
  weight_gradient(width, hidden);
  kept.product.release();
  Held d_silu, d_up;
  if (run_.policy.liger_kernels) {  // ops/swiglu.py swiglu_backward: gate and up become their gradients
    d_up = std::move(kept.up);
    d_product.release();
  } else {
    d_silu = trace_.hold("gradient of silu(gate)", kLlamaMlpBackward, b.mlp);
    d_up = trace_.hold("gradient of up", kLlamaMlpBackward, b.mlp);
    for (Held* gone : {&kept.silu, &kept.up, &d_product}) gone->release();
  }
  Held d_input = trace_.hold("gradient of the MLP's input", kLinearBackward, b.hidden);
  weight_gradient(hidden, width);
  d_up.release();
  Held d_gate;
  if (run_.policy.liger_kernels) {
    d_gate = std::move(kept.gate);
  } else {
    d_gate = trace_.hold("gradient of gate", kLlamaMlpBackward, b.mlp);
    d_silu.release();
    kept.gate.release();
  }
  trace_.hold("gradient of the MLP's input by gate", kLinearBackward, b.hidden);  // added in place
  weight_gradient(hidden, width);
  kept.normed2.release();
  return d_input;
}

void IncumbentLayer::attention_backward(Kept& kept, Held& d_normed) {
  const LayerBytes& b = bytes_;
  const ModelSizes& model = run_.model;
  const int64_t query_width = model.heads * model.head_dim, key_width = model.kv_heads * model.head_dim;
  const int64_t projected_key = b.shared ? b.shared_key : b.key;
  Held d_attended = trace_.hold("gradient of attention's output", kLinearBackward, b.query);
  weight_gradient(query_width, model.hidden);
  kept.projected_input.release();
  if (b.shared) d_attended = exchange_backward(b.query);
  Held d_query = trace_.hold("gradient of query", kFlashBackward, b.query);
  Held d_key = trace_.hold("gradient of key", kFlashBackward, b.used_key);
  Held d_value = trace_.hold("gradient of value", kFlashBackward, b.used_key);
  {
    const int64_t rows = round_up(b.sample_tokens, 128);
    const Held sums = trace_.hold("softmax_d, fp32", kFlashBackward, 4 * b.rank_heads * rows);
    const Held wide = trace_.hold("dq_accum, fp32", kFlashBackward, 4 * b.rank_heads * rows * model.head_dim);
    std::vector<Held> others;
    if (run_.policy.flash == FlashAttention::v3)
      others.push_back(trace_.hold("softmax_lse_log2, fp32", kFlashBackward, 4 * b.rank_heads * rows));
    for (int tensor = 0; b.groups && tensor < 2; ++tensor)
      others.push_back(run_.policy.flash == FlashAttention::v3
                           ? trace_.hold("dk_accum and dv_accum, fp32", kFlashBackward, 2 * b.used_key)
                           : trace_.hold("dk_expanded and dv_expanded", kFlashBackward, b.query));
  }
  for (Held* gone : {&kept.query, &kept.key, &kept.value, &kept.attended, &kept.lse, &d_attended})
    gone->release();
  if (b.repeats) {
    d_value = trace_.hold("gradient of value, summed over query heads", kSdpaBackward, projected_key);
    d_key = trace_.hold("gradient of key, summed over query heads", kSdpaBackward, projected_key);
  }
  if (b.shared) {
    d_value = exchange_backward(projected_key);
    d_key = exchange_backward(projected_key);
    d_query = exchange_backward(b.query);
  }
  d_query = rotate_backward(b.query, std::move(d_query));
  d_key = rotate_backward(b.key, std::move(d_key));
  d_normed = trace_.hold("gradient of the first norm's output", kLinearBackward, b.hidden);
  weight_gradient(model.hidden, key_width);
  d_value.release();
  if (model.qk_norm) {
    d_key = norm_backward(b.key, std::move(kept.key_norm), std::move(d_key));
    d_query = norm_backward(b.query, std::move(kept.query_norm), std::move(d_query));
  }
  trace_.hold("gradient of the first norm's output by key", kLinearBackward, b.hidden);  // added in place
  weight_gradient(model.hidden, key_width);
  d_key.release();
  trace_.hold("gradient of the first norm's output by query", kLinearBackward, b.hidden);
  weight_gradient(model.hidden, query_width);
  d_query.release();
  kept.normed1.release();
}

Held IncumbentLayer::forward_and_backward(Held d_output) {
  Kept kept;
  // torch.utils.checkpoint CheckpointFunction.backward holds outputs and their gradients until it returns.
  trace_.enter("a layer's second forward");
  const Held output = run_layer(true, kept);
  trace_.enter("a layer's MLP backward");
  Held d_branch = mlp_backward(kept);
  d_branch = norm_backward(bytes_.hidden, std::move(kept.norm2), std::move(d_branch));
  kept.sum1.release();
  Held d_sum =
      trace_.hold("gradient of input and attention, added", "InputBuffer::accumulate", bytes_.hidden);
  d_branch.release();
  trace_.enter("a layer's attention backward");
  attention_backward(kept, d_branch);
  d_branch = norm_backward(bytes_.hidden, std::move(kept.norm1), std::move(d_branch));
  d_output.release();
  return d_sum;  // the norm's is added in place
}

}  // namespace trireme
