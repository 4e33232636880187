// The gated delta rule of Gated DeltaNet (arXiv 2412.06464; Qwen3-Next, Qwen3.5), in chunks of tokens, on
// ATen's operations, for the CPU and CUDA alike. A head has a state S [Dk, Dv], zero where a document begins:
//
//   S_t = exp(g_t) S_{t-1} + k_t (x) beta_t (v_t - (exp(g_t) S_{t-1})' k_t)        o_t = S_t' q_t
//
// q and k are first divided by sqrt(sum x^2 + 1e-6), a head's sum, and q multiplied by Dk^-1/2.
//
//   forward    q_BSKD, k_BSKD, v_BSVD, decay_BSV, beta_BSV  -> o_BSVD, states_GBVDD where segments begin
//   backward   d_o_BSVD, the same inputs, states_GBVDD      -> dq, dk, dv, ddecay, dbeta
//
// B batch, S tokens, K key heads of width Dk, V value heads of width Dv, G segments of some chunks. A segment
// is worked on at a time (delta_rule_segment.h), so memory beside inputs and results is bounded; documents
// are parted by masks within chunks, so that many cost as much as one. The host waits for nothing.
// Bytes: delta_rule_bytes.h.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/kernels/delta_rule_bytes.h"

namespace trireme {

// q, k and v have one float dtype, beta any, all of them any strides. Computed in fp64 where these three are
// fp64, else in fp32.
struct DeltaRuleInputs {
  at::Tensor q_BSKD;     // [B, S, K, Dk]
  at::Tensor k_BSKD;     // [B, S, K, Dk]
  at::Tensor v_BSVD;     // [B, S, V, Dv]
  at::Tensor decay_BSV;  // g, the logarithm of the decay: finite, not above 0; fp32 or fp64
  at::Tensor beta_BSV;
};

struct DeltaRuleSpec {
  std::vector<int64_t> key_of_value = {};  // the key head that each value head reads
  at::Tensor document_begins_BS = {};      // document_begins.h, on the inputs' device; or undefined
  int64_t segment_chunks = 0;              // 0: what suits the device
};

struct DeltaRuleOutput {
  at::Tensor o_BSVD;        // v's dtype
  at::Tensor states_GBVDD;  // [G, B, V, Dk, Dv] in the dtype of the computation; undefined if not asked for
};

// Each has its input's shape and dtype.
struct DeltaRuleGradients {
  at::Tensor dq_BSKD;
  at::Tensor dk_BSKD;
  at::Tensor dv_BSVD;
  at::Tensor ddecay_BSV;
  at::Tensor dbeta_BSV;
};

enum class DeltaStates { kept, dropped };

// Throws InternalError: shapes, dtypes, documents or heads do not agree.
DeltaRuleOutput delta_rule(const DeltaRuleInputs& inputs, const DeltaRuleSpec& spec, DeltaStates states);
// d_o [B, S, V, Dv] of v's dtype; the states that the forward kept, with the same spec. Throws as above.
DeltaRuleGradients delta_rule_backward(const at::Tensor& d_o_BSVD, const DeltaRuleInputs& inputs,
                                       const at::Tensor& states_GBVDD, const DeltaRuleSpec& spec);

}  // namespace trireme
