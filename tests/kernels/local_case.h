// One case of attention on one rank, beside its truth, and the kernels that this machine runs.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/kernels/local_attention.h"

#include "tests/kernels/attention_oracle.h"

namespace trireme_test {

struct LocalCase {
  int64_t batch;
  int64_t tokens;
  std::vector<int> kv_of_query;
  int64_t kv_heads;
  int64_t width;
  int64_t window = 0;
  double spread = 1;  // of queries and keys
  trireme::Causality causality = trireme::Causality::causal;
  std::vector<std::vector<int64_t>> cu_seqlens = {};  // of each sample; empty: one document a sample
  trireme::SparseBlocks sparse = {};
  double cap = 0;

  trireme::LayerMask mask() const { return {causality, window, sparse}; }
};
std::ostream& operator<<(std::ostream& out, const LocalCase& c);

// Of whole samples: every token is a query and a key.
struct LocalInputs {
  at::Tensor q, k, v, d_o;
  trireme::AttentionSpec spec;
  SeenKeys seen;
};
LocalInputs draw_inputs(const LocalCase& c, at::ScalarType dtype, uint64_t seed);
OracleResult truth_of(const LocalInputs& in);
OracleResult plain_of(const LocalInputs& in);  // low precision

// Errors to the truth over its largest entry.
struct LocalErrors {
  double o, lse, dq, dk, dv;
};
// Runs forward and backward; expects outputs of q's dtype, contiguous.
LocalErrors errors_of(trireme::LocalAttention& kernel, const LocalInputs& in, const OracleResult& truth);
void expect_below(const LocalErrors& errors, double bound, double lse_bound);
// Error to the truth at most twice that of the plain implementation in the same 16-bit type.
void expect_low_precision_law(trireme::LocalAttention& kernel, const LocalInputs& in,
                              const OracleResult& truth, const OracleResult& plain);

using Kernels = std::vector<std::unique_ptr<trireme::LocalAttention>>;
// Every CPU kernel of one dtype: the reference, and the flash kernel with each instruction set and each way
// to multiply that is here.
Kernels cpu_kernels(at::ScalarType dtype);

}  // namespace trireme_test
