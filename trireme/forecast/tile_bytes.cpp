#include "trireme/forecast/tile_bytes.h"

#include <algorithm>

#include "trireme/kernels/norm_kernel.h"
#include "trireme/kernels/rotary_kernel.h"
#include "trireme/kernels/token_tiles.h"
#include "trireme/kernels/weight_gradient_blocks.h"

namespace trireme {
namespace {

// Tiles of another dtype than what is stored are converted on their way in and out (`convert` bytes an
// element).
struct TileSizes {
  int64_t T, head_T, t, convert, threads, m, i, q, v, packed, projected, vocab, adapter_rank;
  int64_t gate;       // as wide as q where attention's output is gated, else 0
  int64_t o_copy;     // bytes an element of o in the tile: of a gated one, or of one that is converted
  int64_t norm_rows;  // of a DeltaNet's output, a head's each; 0: it has no norm
  int64_t norm_width;
  int64_t projection_modules = 0;  // of a DeltaNet, that LoRA adapts
  int64_t p = 0;                   // of a layer's input
  bool on_host, bf16_blocks, token_kernels, trains_output;

  explicit TileSizes(const ForecastInputs& inputs) {
    const ModelSizes& model = inputs.model;
    const int64_t rows = inputs.batch * inputs.shard_tokens;
    T = largest_tile(rows, inputs.tile_tokens);
    head_T = largest_tile(rows, inputs.logits_tile_tokens);
    t = inputs.tile_bytes;
    convert = inputs.storage_bytes != t ? t : 0;
    threads = inputs.product_threads;
    m = model.hidden;
    i = model.intermediate;
    p = model.layer_input_width;
    const AttentionHeads heads = model.common_heads();
    q = heads.query_width();
    v = heads.key_value_width();
    packed = q + 2 * v;
    projected = heads.projected_width();
    gate = heads.gate_width();
    norm_rows = norm_width = 0;
    if (model.delta_net) {
      const DeltaHeads& delta = model.delta_net->heads;
      q = gate = delta.output_columns();
      v = 0;
      packed = delta.columns();
      projected = model.delta_net->projected_columns();
      projection_modules = model.delta_net->projection_modules();
      norm_rows = T * delta.value;
      norm_width = delta.value_width;
    }
    o_copy = gate > 0 ? t : convert;
    vocab = model.vocab;
    adapter_rank = model.adapters ? model.adapters->rank : 0;
    trains_output = model.trains_output();
    on_host = inputs.device_is_host;
    bf16_blocks = inputs.flash_element_bytes == 2;
    token_kernels = inputs.token_kernels;
  }

  // kernels/token_ops_aten.cpp: `halves` / 2 fp32 tensors of `width` a row, of a block of rows that are cut
  // by `row_elements`. The CPU's own loops and CUDA's kernels have none.
  int64_t blocks(int64_t halves, int64_t width, int64_t tokens, int64_t row_elements) const {
    if (on_host || token_kernels) return 0;
    return halves * largest_tile(tokens, rows_of_block(row_elements)) * width * 4 / 2;
  }
  int64_t blocks(int64_t halves, int64_t width) const { return blocks(halves, width, T, width); }

  // Sums of `vectors` norms' gradients over the rows of a block, of CUDA's kernels (kernels/norm_kernel.h).
  int64_t norm_sums(int64_t tokens, int64_t vectors) const { return norm_sums(tokens, vectors, m); }
  int64_t norm_sums(int64_t rows, int64_t vectors, int64_t width) const {
    return token_kernels ? norm_backward_blocks(rows, width) * vectors * width * kFloat_bytes : 0;
  }
  int64_t head_norm_sums(int64_t head_dim) const {
    return token_kernels ? kMostRotaryPartialRows * 2 * head_dim * kFloat_bytes : 0;
  }
  // After attention forward: where y has another dtype than the tile, x1 is not made in its place.
  int64_t x1_apart() const { return T * m * convert; }
  // Inside an RMS norm's backward.
  int64_t rms_backward(int64_t tokens) const { return blocks(6, m, tokens, m) + norm_sums(tokens, 1); }

  // Of a weight [n, k], beside the fp32 sum (kernels/linear.cpp), to which a GPU and fp32 add the product. A
  // CPU with units for bf16 does so too, from copies of blocks. One without makes a 16-bit product of
  // `tokens` rows and widens it; while it is made, oneDNN keeps a block of each operand and of fp32 sums on
  // each thread: about this many bytes, by measurement with AVX-512.
  int64_t sum_gradient(int64_t n, int64_t k, int64_t tokens) const {
    if (t == 4 || !on_host) return 0;
    if (bf16_blocks) {
      const int64_t blocks = (n + kGradientRows - 1) / kGradientRows;
      return gradient_panels_bytes(k) + std::min(threads, blocks) * gradient_rows_bytes();
    }
    const int64_t rows = std::min<int64_t>(n, 256), depth = std::min<int64_t>(tokens, 512);
    const int64_t columns = std::min<int64_t>(k, tokens > depth ? 1024 : 64);
    const int64_t workspace = threads * (depth * (rows + columns) * t + rows * 64 * 4);
    return n * k * t + std::max(n * k * 4, workspace);
  }
  // Of a layer's matrix that LoRA does not adapt: with adapters it stays as it is.
  int64_t plain_gradient(int64_t n, int64_t k) const { return adapter_rank > 0 ? 0 : sum_gradient(n, k, T); }
  int64_t output_gradient() const { return trains_output ? sum_gradient(vocab, m, head_T) : 0; }
  // Of a layer's matrix [n, k] that holds so many parameters, or of what LoRA trains beside it.
  int64_t gradient(int64_t n, int64_t k, int64_t parameters = 1) const {
    if (adapter_rank == 0) return sum_gradient(n, k, T);
    return inner(parameters) +
           std::max(sum_gradient(n, adapter_rank, T), sum_gradient(parameters * adapter_rank, k, T));
  }
  // Between the two matrices of LoRA (model/adapted_linear.h).
  int64_t inner(int64_t parameters) const { return T * parameters * adapter_rank * t; }
  int64_t cross_entropy() const { return blocks(t == 4 ? 2 : 4, vocab, head_T, vocab); }
};

// Inside a layer norm, per element: ATen's operands of 16 bits are widened, and its result rounded; on the
// way back when the widened dy is gone. CUDA's kernel has its result alone.
int64_t layer_norm_bytes(const TileSizes& s, int64_t x, int64_t y) {
  if (s.token_kernels) return y;
  return (x == 4 ? 0 : 4) + 4 + (y == 4 ? 0 : y);
}
int64_t layer_norm_backward_bytes(const TileSizes& s, int64_t dy, int64_t x, int64_t dx) {
  if (s.token_kernels) return dx;
  return (x == 4 ? 0 : 4) + 4 + std::max<int64_t>(dy == 4 ? 0 : 4, dx == 4 ? 0 : dx);
}

// Of attention's output times its gate (model/families/output_gate.cpp).
int64_t gated_output_bytes(const TileSizes& s) {
  if (s.gate == 0) return s.T * s.q * s.convert;
  // A DeltaNet's: the gate beside the normed output, with the latter before it was copied there, or with the
  // product. Attention's: the gate where it is converted, and its sigmoid, which becomes the product.
  return s.T * s.q * (s.norm_rows > 0 ? 3 * s.t : s.t + s.convert);
}
// Of its gradient's way to those of the output and the gate, when the gated output itself is freed.
int64_t gated_output_backward_bytes(const TileSizes& s) {
  if (s.gate == 0) return 0;
  const int64_t Tq = s.T * s.q * s.t;
  if (s.norm_rows == 0) return 3 * Tq;
  return 4 * Tq + s.blocks(6, s.norm_width, s.norm_rows, s.norm_width) +
         s.norm_sums(s.norm_rows, 1, s.norm_width);
}

// d(normed), with a norm of a also d(a): in the norm's backward and the out projection's. d(x1) is where dy was.
int64_t after_mlp_backward(const TileSizes& s, int64_t post) {
  const int64_t back = s.T * s.q * s.o_copy + s.inner(1);  // of o, or of it before it was gated
  const int64_t out = std::max({s.gradient(s.m, s.q), back, gated_output_backward_bytes(s)});
  return s.T * s.m * s.t + post + std::max(out, s.rms_backward(s.T));
}

int64_t decoder_head(const TileSizes& s) {
  return s.head_T * (s.m + s.vocab) * s.t + std::max({2 * s.head_T * s.m * s.t + s.rms_backward(s.head_T),
                                                      s.output_gradient(), s.cross_entropy()});
}

// Beside y or dy, and beside y as it was in backward (model/families/layer_input.cpp).
int64_t layer_input_forward(const TileSizes& s) {
  if (s.p == 0) return 0;
  const int64_t Tm = s.T * s.m * s.t, Tp = s.T * s.p * s.t;
  return std::max({2 * Tp + std::max(Tp + s.blocks(2, s.p), s.inner(1)), Tp + Tm + s.inner(1),
                   Tp + 2 * Tm + s.blocks(2, s.m)});
}
int64_t layer_input_backward(const TileSizes& s) {
  const int64_t Tm = s.T * s.m * s.t, Tp = s.T * s.p * s.t;
  const int64_t products = std::max({s.gradient(s.m, s.p), s.gradient(s.p, s.m), Tm + s.inner(1)});
  return 2 * Tp + Tm +
         std::max(Tm + std::max(Tp, s.rms_backward(s.T)), 2 * Tp + std::max(s.blocks(6, s.p), products));
}
void add_layer_inputs(const ModelSizes& model, const TileSizes& s, int64_t layers, TileBytes& bytes) {
  if (s.p == 0) return;
  const int64_t rows = s.head_T * layers, all = rows * s.p * s.t, x = s.head_T * s.m;
  const auto norm = [&](int64_t halves) { return s.blocks(halves, s.p, rows, s.p); };
  bytes.layer_inputs_forward = x * s.convert + 2 * all + norm(2);
  if (model.adapted()) return;
  const int64_t added = s.t == kFloat_bytes ? all : 2 * rows * s.p * kFloat_bytes;
  const int64_t products = std::max(s.sum_gradient(layers * s.p, s.m, s.head_T), x * s.t);
  bytes.layer_inputs_backward =
      x * s.convert + all +
      std::max({all, added, 2 * all + std::max(norm(6) + s.norm_sums(rows, 1, s.p), products)});
}

// What experts hold (model/families/routed_experts.cpp): R rows of k choices a token.
struct ExpertBytes {
  int64_t Tm, rows, act, gate_up, logits, routing, probabilities, summed, sums_of_act, gate_up_gradient,
      down_gradient, glu_backward, glu_forward;

  ExpertBytes(const ModelSizes& model, const TileSizes& s) {
    constexpr int64_t kIndex_bytes = 8;
    const int64_t R = s.T * model.experts_per_token, E = model.experts;
    const bool narrow = s.t != kFloat_bytes;
    Tm = s.T * s.m * s.t;
    rows = R * s.m * s.t;
    act = R * s.i * s.t;
    gate_up = 2 * act;
    logits = s.T * E * s.t;
    // Of each choice: its expert and its weight; the choice, the token and the place of its row; its scale.
    routing = R * (kIndex_bytes + kFloat_bytes) + 3 * R * kIndex_bytes +
              (model.experts_beside_mlp ? R * kFloat_bytes : 0);
    // Sorted with their experts; or logits that were widened.
    probabilities = s.T * E * (2 * kFloat_bytes + kIndex_bytes);
    // The sum of rows, with a choice's rows widened.
    summed = s.T * s.m * (kFloat_bytes + s.t + (narrow ? kFloat_bytes : 0));
    // ATen's of 16 bits on a CPU.
    sums_of_act = s.on_host && narrow ? R * s.i * kFloat_bytes : 0;
    // One expert may have all T tokens: nothing balances them.
    gate_up_gradient = s.plain_gradient(2 * s.i, s.m);
    down_gradient = s.plain_gradient(s.m, s.i);
    glu_forward = s.blocks(2, s.i, R, s.i);
    glu_backward = s.blocks(6, s.i, R, s.i);
  }
  // `made`: gate|up and logits, where they are not kept; beside what the caller holds.
  int64_t forward(int64_t made) const {
    return std::max({made + Tm + std::max(probabilities, routing + rows),
                     made + routing + rows + act + glu_forward, routing + rows + summed});
  }
  int64_t backward(int64_t made) const {
    const int64_t base = made + routing + rows;
    return std::max({made + probabilities, base + rows + 2 * act + std::max(glu_backward, sums_of_act),
                     base + rows + act + down_gradient, base + gate_up_gradient,
                     routing + rows + (made > 0 ? logits : 0) + summed + Tm});
  }
};

// Of an MLP for all tokens that lies beside experts (model/families/shared_expert.cpp, experts_beside_mlp.cpp).
struct SharedBytes {
  int64_t act, gate_up, forward_of_act, backward_of_act, gradient;

  SharedBytes(const ModelSizes& model, const TileSizes& s) {
    const int64_t width = model.shared_intermediate, sums = s.on_host && s.t != kFloat_bytes;
    act = s.T * width * s.t;
    gate_up = 2 * act;
    forward_of_act = std::max(act + s.blocks(2, width), s.inner(2));
    const int64_t share = model.experts_beside_mlp ? 0 : sums * s.T * width * kFloat_bytes;
    backward_of_act = 2 * act + std::max({s.blocks(6, width), share, s.gradient(s.m, width)});
    gradient = std::max(s.gradient(2 * width, s.m, 2), s.T * s.m * s.t + s.inner(2));
  }
};

// After attention, of a mixture of experts (model/families/expert_mlp.cpp).
void add_expert_mlp(const ModelSizes& model, const TileSizes& s, TileBytes& bytes) {
  const ExpertBytes experts(model, s);
  const SharedBytes shared(model, s);
  const bool shares = model.shared_intermediate > 0;
  const int64_t Tm = experts.Tm, x1_apart = s.x1_apart();
  const auto forward = [&](int64_t made, int64_t shared_made) {  // with logits
    // x1 widened on a CPU, and x1 + sum.
    const int64_t added = s.on_host && s.t != kFloat_bytes ? s.T * s.m * 3 * kFloat_bytes : 0;
    return std::max({x1_apart + s.T * s.q * s.o_copy + s.inner(1), gated_output_bytes(s),
                     x1_apart + Tm + s.blocks(2, s.m),
                     x1_apart + Tm + (shares ? shared_made + shared.forward_of_act : 0),
                     x1_apart + experts.forward(made), x1_apart + experts.routing + experts.rows + added});
  };
  bytes.after_attention_forward = forward(experts.gate_up + experts.logits, shared.gate_up);
  bytes.after_attention_forward_kept = forward(0, 0);

  const auto backward = [&](int64_t x1, int64_t made, int64_t shared_made) {
    const int64_t held = s.T * s.q * s.o_copy + s.T * s.m * s.convert + x1;  // o, dy
    const int64_t of_shared = shared_made + std::max(shared.backward_of_act, shared.gradient);
    return std::max({held + Tm + experts.backward(made),        // normed
                     held + 2 * Tm + (shares ? of_shared : 0),  // and d(normed)
                     held + after_mlp_backward(s, 0)});
  };
  bytes.after_attention_backward = backward(Tm, experts.gate_up + experts.logits, shared.gate_up);
  bytes.after_attention_backward_kept = backward(0, 0, 0);
}

// After attention, of experts beside an MLP (model/families/experts_beside_mlp.cpp).
void add_experts_beside_mlp(const ModelSizes& model, const TileSizes& s, TileBytes& bytes) {
  const ExpertBytes experts(model, s);
  const SharedBytes mlp(model, s);
  const int64_t Tm = experts.Tm;
  const int64_t x1_apart = s.x1_apart();
  const auto forward = [&](int64_t mlp_made, int64_t experts_made) {
    const int64_t a = experts_made > 0 ? Tm : 0;
    const int64_t o_x_a = s.T * s.q * s.o_copy + s.T * s.m * (s.convert + s.t) + a + s.inner(1);
    // Beside x1: normed; b; norms; the sum with the inputs of router and experts, with these, with e in fp32 and
    // rounded.
    return std::max(
        o_x_a, x1_apart + std::max({Tm + mlp_made + mlp.forward_of_act, mlp.act + Tm + s.inner(1),
                                    2 * Tm + std::max(Tm, s.blocks(2, s.m)), 3 * Tm + experts_made,
                                    Tm + experts.forward(experts_made), 2 * Tm + s.T * s.m * kFloat_bytes}));
  };
  const int64_t with_input = x1_apart + layer_input_forward(s);
  bytes.after_attention_forward =
      std::max(forward(mlp.gate_up, experts.gate_up + experts.logits), with_input);
  bytes.after_attention_forward_kept = std::max(forward(0, 0), with_input);

  // What is made again takes less than its backward.
  const auto backward = [&](int64_t x1, int64_t made_again) {
    // o, dy; a or, where that is kept, x1
    const int64_t before = s.T * s.q * s.o_copy + s.T * s.m * s.convert + x1 + Tm;
    // What an input was added to goes before the MLP's backward.
    const int64_t added_to = s.p > 0 && made_again > 0 ? Tm : 0;
    const int64_t held = before + Tm + made_again - added_to;  // normed
    const int64_t sums = held + 3 * Tm + s.rms_backward(s.T);
    const int64_t of_experts = held + 4 * Tm + experts.backward(0);
    const int64_t of_router = held + 4 * Tm + experts.logits + s.rms_backward(s.T);
    const int64_t of_mlp =
        held + 2 * Tm + std::max({Tm + s.rms_backward(s.T), mlp.backward_of_act, mlp.gradient});
    const int64_t of_input = s.p > 0 ? before + made_again + layer_input_backward(s) : 0;
    return std::max({sums, of_experts, of_router, of_mlp, of_input, before + Tm + after_mlp_backward(s, Tm)});
  };
  bytes.after_attention_backward = backward(Tm, s.T * model.mlp_kept_width * s.t);
  bytes.after_attention_backward_kept = backward(0, 0);
}

// Before a DeltaNet: all columns and the gate in one product.
void add_delta_net_projection(const TileSizes& s, TileBytes& bytes) {
  const int64_t Tm = s.T * s.m * s.t, columns = s.T * s.projected, modules = s.projection_modules;
  bytes.before_attention_forward = Tm + std::max(s.blocks(2, s.m), columns * s.t + s.inner(modules));
  const int64_t products =
      std::max(Tm + std::max(s.rms_backward(s.T), s.inner(modules)), s.gradient(s.projected, s.m, modules));
  bytes.before_attention_backward = Tm + columns * s.t + products;
}

// Before attention (families/decoder_layer.cpp). Where keys are values the projection is narrower than what
// attention takes, so that neither is made in the other's place.
void add_before_attention(const ModelSizes& model, const TileSizes& s, TileBytes& bytes) {
  if (model.delta_net) return add_delta_net_projection(s, bytes);
  const int64_t T = s.T, t = s.t, m = s.m, width = model.head_dim, v_rows = T * model.kv_heads;
  const bool v_normed = model.v_norm && !model.share_keys;
  const int64_t rotated = s.q + model.common_heads().projected_keys() * width, of_v = T * s.v * t;
  const int64_t products = 1 + model.common_heads().projections_of_keys();  // that LoRA adapts
  // Rows of cos and sin, beside the heads.
  const int64_t turning = s.blocks(3, rotated) + s.blocks(2, width, T, rotated);
  const int64_t v_norm = v_normed ? 2 * of_v + s.blocks(2, width, v_rows, width) : 0;  // v, and normed
  const int64_t projected = T * (s.projected - s.gate) * (model.keys_are_values ? t : s.convert);
  const int64_t with_gates = s.gate > 0 ? T * s.projected * t : 0;
  bytes.before_attention_forward =
      T * m * t +
      std::max(s.blocks(2, m), projected + std::max({turning, with_gates + s.inner(products), v_norm}));

  const int64_t before = model.v_norm ? T * s.projected * t : model.qk_norm ? T * rotated * t : 0;
  const int64_t norms =
      model.qk_norm ? s.blocks(4, rotated) + s.blocks(2, s.q, T, rotated) + s.head_norm_sums(width) : 0;
  // d(v), v of the projection, and the gradient of it.
  const int64_t v_norm_backward =
      v_normed ? 3 * of_v + s.blocks(6, width, v_rows, width) + s.norm_sums(v_rows, 1, width) : 0;
  const int64_t products_backward = std::max(T * m * t + std::max(s.rms_backward(T), s.inner(products)),
                                             s.gradient(s.projected, m, products));
  if (s.gate > 0) {
    // Queries and keys with gates and without; d of all of them beside that without, which was before them.
    const int64_t parted = before > 0 ? before + T * s.gate * t : 0;
    bytes.before_attention_backward =
        T * m * t + std::max({before + parted, before + projected + std::max(turning, norms),
                              projected + with_gates + products_backward});
    return;
  }
  bytes.before_attention_backward =
      T * m * t + before + projected + std::max({products_backward, turning, norms, v_norm_backward});
}

TileBytes decoder_tile_bytes(const ForecastInputs& inputs) {
  const TileSizes s(inputs);
  const int64_t T = s.T, t = s.t, m = s.m, i = s.i, q = s.q;
  TileBytes bytes;
  add_before_attention(inputs.model, s, bytes);
  add_layer_inputs(inputs.model, s, /*layers=*/inputs.recompute.layers, bytes);  // of the whole model
  bytes.head = decoder_head(s);
  if (inputs.model.experts > 0) {
    (inputs.model.experts_beside_mlp ? add_experts_beside_mlp : add_expert_mlp)(inputs.model, s, bytes);
    return bytes;
  }
  const int64_t post = inputs.model.post_norms ? T * m * t : 0;  // a, or another of hidden width
  const int64_t x1_apart = s.x1_apart();
  const auto forward = [&](int64_t gate_up) {
    // With a norm of a: that, x widened, and a where it is not kept.
    const int64_t normed_a = post + (gate_up > 0 ? post : 0);
    return std::max({x1_apart + T * q * s.o_copy + normed_a + s.inner(1), gated_output_bytes(s),
                     x1_apart + post + T * m * t + s.blocks(2, m),
                     x1_apart + T * (m + gate_up + i) * t + s.blocks(2, i)});
  };
  const int64_t with_input = x1_apart + layer_input_forward(s);
  bytes.after_attention_forward = std::max(forward(2 * i), with_input);
  bytes.after_attention_forward_kept = std::max(forward(0), with_input);
  const auto backward = [&](int64_t x1, int64_t gate_up) {
    const int64_t held =
        T * q * s.o_copy + T * m * s.convert + x1 + post;             // o, dy; a or, where that is kept, x1
    const int64_t mlp = held + gate_up + T * (m + 2 * i) * t + post;  // normed, dact, act; db
    // The MLP's buffer goes as a whole, b in it; y as it was lies behind it.
    const int64_t made_again = gate_up > 0 ? gate_up + post : 0;
    const int64_t of_input =
        s.p > 0 ? held + made_again + (gate_up > 0 ? T * m * t : 0) + layer_input_backward(s) : 0;
    const int64_t b = s.p > 0 && gate_up > 0 ? post : 0;
    return std::max(
        {mlp + b +
             std::max({s.gradient(m, i), s.gradient(2 * i, m, 2), s.blocks(6, i), T * m * t + s.inner(2)}),
         of_input, held + after_mlp_backward(s, post)});
  };
  bytes.after_attention_backward = backward(T * m * t, T * 2 * i * t);
  bytes.after_attention_backward_kept = backward(0, 0);
  return bytes;
}

TileBytes encoder_tile_bytes(const ForecastInputs& inputs) {
  const TileSizes s(inputs);
  const int64_t t = s.t, e = inputs.storage_bytes, m = s.m;
  const int64_t Tm = s.T * m, Ti = s.T * s.i, Tq = s.T * s.q, Tqkv = s.T * s.packed;
  TileBytes bytes;
  bytes.before_attention_forward = (Tm + Tqkv) * s.convert;
  bytes.before_attention_backward = Tqkv * s.convert + Tm * s.convert + s.gradient(s.packed, m);

  bytes.after_attention_forward = std::max({(Tq + Tm) * s.convert + Tm * t,           // x1
                                            Tm * t + Tm * layer_norm_bytes(s, t, t),  // a
                                            (Tm + 2 * Ti) * t,                        // a, then x2; up, act
                                            (Tm + Ti) * t + Tm * layer_norm_bytes(s, t, e)});
  bytes.after_attention_forward_kept = bytes.after_attention_forward;
  const auto backward = [&](bool kept) {
    const int64_t o = Tq * s.convert;
    const int64_t x1 = kept ? 0 : Tm * t, up = kept ? 0 : Ti * t, x2 = kept ? 0 : Tm * t;
    const int64_t held = o + x1 + Tm * t;  // and a
    const int64_t again = kept ? 0 : held + up + x2 + Ti * t;
    const int64_t last_norm =
        held + up + x2 + Tm * layer_norm_backward_bytes(s, e, t, t) + s.norm_sums(s.T, 2);
    const int64_t mlp =
        held + up + (Tm + Ti) * t + std::max(s.gradient(m, s.i), s.gradient(s.i, m));  // dx2, dup
    const int64_t first_norm =
        held + Tm * t + Tm * layer_norm_backward_bytes(s, t, t, t) + s.norm_sums(s.T, 2);
    const int64_t out = held + 2 * Tm * t + std::max(s.gradient(m, s.q), Tq * s.convert);
    return std::max({again, last_norm, mlp, first_norm, out});
  };
  bytes.after_attention_backward = backward(false);
  bytes.after_attention_backward_kept = backward(true);

  const int64_t Hm = s.head_T * m;
  const int64_t tile = (3 * Hm + s.head_T * s.vocab) * t;  // dense, act, normed, logits
  bytes.head = tile + std::max({s.cross_entropy(), s.output_gradient(),
                                Hm * (t + layer_norm_backward_bytes(s, t, t, t)) + s.norm_sums(s.head_T, 2),
                                Hm * (2 * t + s.convert) + s.sum_gradient(m, m, s.head_T), 3 * Hm * t});
  return bytes;
}

}  // namespace

TileBytes tile_bytes(const ForecastInputs& inputs) {
  switch (inputs.model.tiles) {
    case TileFormula::decoder:
      return decoder_tile_bytes(inputs);
    case TileFormula::encoder:
      return encoder_tile_bytes(inputs);
    case TileFormula::widest:
      break;
  }
  const TileBytes a = decoder_tile_bytes(inputs), b = encoder_tile_bytes(inputs);
  const TileSizes s(inputs);
  const int64_t more = s.T * s.m * (s.t + kFloat_bytes);  // a tensor of hidden width, widened in a norm
  return {
      .before_attention_forward = more + std::max(a.before_attention_forward, b.before_attention_forward),
      .before_attention_backward = more + std::max(a.before_attention_backward, b.before_attention_backward),
      .after_attention_forward = more + std::max(a.after_attention_forward, b.after_attention_forward),
      .after_attention_forward_kept =
          more + std::max(a.after_attention_forward_kept, b.after_attention_forward_kept),
      .after_attention_backward = more + std::max(a.after_attention_backward, b.after_attention_backward),
      .after_attention_backward_kept =
          more + std::max(a.after_attention_backward_kept, b.after_attention_backward_kept),
      .head = std::max(a.head, b.head)};
}

}  // namespace trireme
