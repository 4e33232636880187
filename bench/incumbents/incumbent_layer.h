// A decoder layer of the incumbents: its forward, with or without what autograd keeps, and its backward.
#pragma once

#include "bench/incumbents/incumbent_zero.h"

namespace trireme {

// Sizes in bytes of bf16 tensors on one rank, s of S tokens.
struct LayerBytes {
  explicit LayerBytes(const IncumbentRun& run);
  int64_t tokens;         // s
  int64_t sample_tokens;  // S, of the ranks that share it
  int64_t rank_heads;     // h
  bool shared;            // Ulysses is at work
  bool groups;            // attention's kernel sees more query than key/value heads
  bool repeats;           // or sees keys and values repeated, under sdpa
  int64_t hidden;         // [s, M]
  int64_t query;          // [s, H, D], and as large [S, h, D]
  int64_t key;            // [s, K, D]
  int64_t shared_key;     // [S, k, D]
  int64_t used_key;       // as attention's kernel sees it
  int64_t mlp;            // [s, I]
  int64_t lse;            // fp32 [h, S]
};

// What a norm keeps for backward, beside its weight. Liger's keeps its input and a number a row; a layer's
// own input is held by the layer, that of the norms of query and key here.
struct NormKept {
  Held input;
  Held wide;    // the input in fp32
  Held scaled;  // bf16
  Held reciprocal;
};

class IncumbentLayer {
 public:
  IncumbentLayer(const IncumbentRun& run, IncumbentTrace& trace, IncumbentZero& zero)
      : run_(run), bytes_(run), trace_(trace), zero_(zero) {}

  // Under no_grad, as gradient checkpointing runs it first: the output, nothing else.
  Held forward();
  // Takes the gradient of the output, gives that of the input. The input is held by the caller.
  Held forward_and_backward(Held d_output);

  Held norm(int64_t bytes, int64_t rows, bool keep, NormKept& kept);
  // Takes what was kept and the output's gradient, gives the input's.
  Held norm_backward(int64_t bytes, NormKept kept, Held d_output);
  const LayerBytes& bytes() const { return bytes_; }

 private:
  struct Kept {
    NormKept norm1, query_norm, key_norm, norm2;
    Held normed1, query, key, value, attended, lse, projected_input, sum1, normed2;
    Held gate, silu, up, product;
  };
  Held attention(bool keep, Kept& kept);
  Held normed_heads(Held projected, int64_t bytes, int64_t rows, bool keep, NormKept& kept);
  Held repeated_heads(std::string_view name);
  Held mlp(bool keep, Kept& kept);
  Held mlp_backward(Kept& kept);
  void attention_backward(Kept& kept, Held& d_normed);
  Held rotate(int64_t bytes);
  Held rotate_backward(int64_t bytes, Held d_output);
  Held exchange(int64_t bytes, int64_t repeated_bytes);
  Held exchange_backward(int64_t bytes);
  Held run_layer(bool keep, Kept& kept);
  Held tile(int64_t tokens, bool backward);
  void weight_gradient(int64_t inputs, int64_t outputs);

  const IncumbentRun& run_;
  LayerBytes bytes_;
  IncumbentTrace& trace_;
  IncumbentZero& zero_;
};

}  // namespace trireme
