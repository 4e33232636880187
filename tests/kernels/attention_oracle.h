// Attention by its definition, in fp64, with dense S x T matrices and masks: the judge of every kernel and of
// every way to spread it over ranks. It shares no code with trireme/attention, masks included.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace trireme_test {

// Which keys the queries of whole samples see: all conditions together.
struct OracleMask {
  bool causal = true;
  int64_t window = 0;  // W: |query - key| < W; 0: any distance
  // Of each sample, the document that each token belongs to, in any numbering; empty: one document a sample.
  std::vector<std::vector<int64_t>> document_of_token;
  // Blocks of b x b tokens; 0: every block is kept. Kept: near the diagonal, the first key blocks, every n-th
  // key block, and without causality the first query blocks.
  int64_t block_tokens = 0;
  int64_t local_blocks = 1;
  int64_t global_blocks = 0;
  int64_t stride_blocks = 0;
};

// Of each sample [S, T] bool, true where a query (row) sees a key (column). Parts of it are masks of parts of
// the queries and keys.
using SeenKeys = std::vector<at::Tensor>;
SeenKeys seen_keys(const OracleMask& mask, int64_t batch, int64_t tokens);

struct OracleResult {
  at::Tensor o;    // [B, S, h, D] fp64; 0 where a query sees nothing
  at::Tensor lse;  // [B, h, S] fp64; minus infinity there
  at::Tensor dq, dk, dv;
};

// q, d_o [B, S, h, D] and k, v [B, T, k, D] of any dtype. `kept_o`: what o is rounded to between forward and
// backward, all else being exact; what this alone does to dq and dk, no kernel that keeps o so can avoid.
// `cap` above 0: scores are cap tanh(scale q.k / cap).
OracleResult attention_oracle(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& d_o, double scale, const SeenKeys& seen,
                              const std::vector<int>& kv_of_query, at::ScalarType kept_o = at::kDouble,
                              double cap = 0);

// The plain implementation in low precision: matrix products of 16-bit inputs with results rounded to their
// type, softmax in fp32. What a kernel's error is compared with. Every query sees a key; lse is not computed.
OracleResult plain_low_precision(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& d_o, double scale, const SeenKeys& seen,
                                 const std::vector<int>& kv_of_query, double cap = 0);

// Largest |got - truth|; infinite where one of them is not finite.
double largest_difference(const at::Tensor& got, const at::Tensor& truth);
// The same over the largest |truth|.
double relative_error(const at::Tensor& got, const at::Tensor& truth);

}  // namespace trireme_test
