// The arithmetic of one segment of the gated delta rule (delta_rule.h), up to what needs the state. In a
// chunk of C tokens with the state S0 before it:
//
//   G_i  sum of g from where i's document begins, or the chunk does, to i
//   D_ij = exp(G_i - G_j) for j <= i of i's document, else 0
//   c_i  = exp(G_i) where i's document began before the chunk, else 0       what i sees of S0
//   w_j  = D_lj, l the last token                                           what S1 has of j
//   A    = strictly lower part of beta_i (k_i . k_j) D_ij                   P = (q_i . k_j) D_ij
//
//   R = beta v - beta c k S0     U = (I + A)^-1 R     o = c q S0 + P U      S1 = c_l S0 + (w k)' U
//
// These are equation 8 and the UT transform of arXiv 2412.06464. No exponent is above 0. The inverse has no
// entry above 1: it maps a token's value to what later tokens still see of it.
//
// n chunks, B samples, K key heads, V value heads, C tokens of a chunk; chunks come first, so that a step of
// the recurrence has its matrices of all samples and heads side by side.
#pragma once

#include "trireme/kernels/delta_rule.h"

namespace trireme {

// x / sqrt(sum x^2 + 1e-6) * scale.
struct UnitRows {
  at::Tensor rows_nBKCD;
  at::Tensor inverse_norm_nBKC1;
  double scale = 1;
};

struct DeltaSegment {
  int64_t first_token = 0;
  int64_t chunks = 0;
  UnitRows q;  // of the call's key heads (DeltaRuleCall)
  UnitRows k;
  at::Tensor v_nBVCD;  // strided, in v's own dtype
  at::Tensor beta_nBVC1;
  at::Tensor document_nBCC;  // fp64: 1 where G_i has g_j, else 0
  at::Tensor decay_nBVCC;    // D
  at::Tensor carried_nBVC1;  // c
  at::Tensor kept_nBVC1;     // w
  at::Tensor overlap_nBVCC;  // (k_i . k_j) D_ij below the diagonal, else 0
  at::Tensor scores_nBVCC;   // P
  at::Tensor inverse_nBVCC;  // (I + A)^-1
  at::Tensor reads_nNCD;     // [-beta c k; c q]: [n, B V, 2 C, Dk]
  at::Tensor writes_nNCD;    // w k: [n, B V, C, Dk]

  at::Tensor last_carried_nN11() const;  // c_l
};

// What all segments of a call share. Where each key head is read by equally many neighbours, products of keys
// are computed once for them all; else the key heads are spread first, one for each value head.
class DeltaRuleCall {
 public:
  // Throws InternalError: shapes, dtypes, documents or heads do not agree.
  DeltaRuleCall(const DeltaRuleInputs& inputs, const DeltaRuleSpec& spec);

  const DeltaRuleSizes& sizes() const { return sizes_; }
  bool empty() const;
  at::TensorOptions options() const { return options_; }  // of the computation
  DeltaSegment segment(int64_t index) const;

  // [B, S, H, D] of any strides -> a view [n, B, H, C, D] of a segment's tokens, zeros beyond the last.
  at::Tensor in_chunks(const at::Tensor& x_BSHD, const DeltaSegment& segment) const;
  // The way back, of the tokens that there are.
  void put(const at::Tensor& to_BSHD, const at::Tensor& x_nBHCD, const DeltaSegment& segment) const;

  // Value heads of the segment's key heads: [n, B, V, ...] <-> [n, B, K', V / K', ...], a view.
  at::Tensor grouped(const at::Tensor& x_nBV) const;
  // The sum over the value heads of each of the segment's key heads.
  at::Tensor summed(const at::Tensor& x_nBV) const;
  // The gradient of unit rows of the segment's key heads [n, B, K', C, D] -> that of what they were made of
  // [n, B, K, C, D].
  at::Tensor of_inputs(at::Tensor d_rows_nBKCD, const UnitRows& unit) const;

 private:
  UnitRows unit_rows(const at::Tensor& x_BSKD, double scale, const DeltaSegment& segment) const;
  // int32 [n, B, C]: where a token's document begins in its chunk; below 0: before it.
  at::Tensor begins_in_chunks(const DeltaSegment& segment) const;

  DeltaRuleInputs inputs_;
  DeltaRuleSizes sizes_;
  at::TensorOptions options_;
  int64_t group_ = 1;        // V / K'
  at::Tensor key_of_value_;  // undefined where key heads need not be spread
  at::Tensor document_begins_BS_;
};

}  // namespace trireme
