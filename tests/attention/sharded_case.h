// One case of attention over U x R ranks, beside its truth: inputs of whole samples are drawn, each rank runs
// forward and backward on its part, and what the ranks give is put together by tokens and heads.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/attention/sequence_attention.h"
#include "trireme/base/sample_layout.h"
#include "trireme/comm/mesh.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/kernels/mask.h"

#include "tests/kernels/attention_oracle.h"
#include "tests/kernels/oracle_mask.h"

namespace trireme_test {

struct ShardedCase {
  int ulysses = 1;  // U
  int ring = 1;     // R
  trireme::RingMethod method = trireme::RingMethod::ring;
  int head_chunks = 1;
  int64_t batch = 1;
  int64_t tokens = 1;
  int64_t query_heads = 1;
  int64_t kv_heads = 1;
  int64_t width = 8;  // D
  trireme::LayerMask mask = {};
  std::vector<std::vector<int64_t>> cu_seqlens = {};  // of each sample; empty: one document a sample
  at::ScalarType dtype = at::kFloat;
  trireme::AttentionKernel kernel = trireme::AttentionKernel::automatic;
  double cap = 0;
  bool keeps_by_heads = false;  // q, k, v and o for backward, which exchanges them again otherwise

  int ranks() const { return ulysses * ring; }
  trireme::SampleLayout layout() const { return {tokens, ulysses, ring}; }
  trireme::ScoreForm scores() const;
  std::vector<int> kv_of_query() const;  // of all heads
};
std::ostream& operator<<(std::ostream& out, const ShardedCase& c);

// Of whole samples and all heads.
struct ShardedInputs {
  at::Tensor qkv;  // [B, S, H + 2K, D]
  at::Tensor d_o;  // [B, S, H, D]
};
ShardedInputs draw_inputs(const ShardedCase& c, uint64_t seed);

struct ShardedResult {
  at::Tensor o;       // [B, S, H, D]
  at::Tensor lse;     // [B, H, S]
  at::Tensor dq;      // [B, S, H, D]; dq, dk and dv are views of one tensor
  at::Tensor dk, dv;  // [B, S, K, D]
};
// NaN everywhere: what no rank gives shows.
ShardedResult nothing_yet(const ShardedCase& c);

// Forward and backward of the calling rank; writes its tokens and heads into `whole`, which all ranks share.
// Collective over the mesh's sp group, of c.ulysses x c.ring ranks.
void run_rank(const trireme::Mesh& mesh, const ShardedCase& c, const ShardedInputs& in, ShardedResult& whole);
// The same in a world of its own: ranks as threads.
ShardedResult run_on_ranks(const ShardedCase& c, const ShardedInputs& in);

// `kept_o`: attention_oracle.h.
OracleResult truth_of(const ShardedCase& c, const ShardedInputs& in, at::ScalarType kept_o = at::kDouble);
OracleResult plain_of(const ShardedCase& c, const ShardedInputs& in);  // low precision

}  // namespace trireme_test
