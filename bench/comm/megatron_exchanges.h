// One transformer layer under Megatron-style tensor and sequence parallelism (arXiv 2205.05198, section
// 4.2.2), as far as it travels: what Ulysses is measured against. Between blocks a rank holds s tokens;
// inside a block it computes its heads, or its columns of the MLP, of all S tokens, which gives a part of a
// sum over ranks:
//
//   forward    x_sBM --all_gather--> x_SBM --attention--> part_SBM --reduce_scatter_sum--> + x_sBM = y_sBM
//              y_sBM --all_gather--> y_SBM --mlp--------> part_SBM --reduce_scatter_sum--> + y_sBM = z_sBM
//   backward   mlp, then attention: dz_sBM and y_sBM are gathered, the parts of dy are scattered; likewise
//              dy, x and dx
//
// Only x_sBM and y_sBM are kept; backward gathers them again, since the weights' gradients need all S tokens.
// Four exchanges forward, six backward. Norms, dropout and biases are token-wise and are left to the blocks.
//
// B batch, S sequence, s this rank's tokens, M hidden width.
#pragma once

#include <functional>

#include <ATen/ATen.h>

#include "trireme/attention/exchange_bytes.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/comm/group.h"

namespace trireme {

// What one rank computes of attention or of the MLP. Results have x's shape and dtype and are contiguous;
// they are summed over ranks.
struct TensorParallelBlock {
  // x_SBM -> this rank's part of the output.
  std::function<at::Tensor(const at::Tensor& x_SBM)> forward;
  // -> this rank's part of dx. It is given x for its weights' gradients, which do not travel.
  std::function<at::Tensor(const at::Tensor& x_SBM, const at::Tensor& d_out_SBM)> backward;
};

struct MegatronBlocks {
  TensorParallelBlock attention;
  TensorParallelBlock mlp;
};

// What is kept for backward.
struct MegatronSaved {
  at::Tensor x_sBM;
  at::Tensor y_sBM;  // after attention
};

struct MegatronOutput {
  at::Tensor z_sBM;
  MegatronSaved saved;
};

// `layout`: S tokens over the group's ranks; x [s, B, M], contiguous. Collective.
MegatronOutput megatron_layer_forward(Group& group, const SequenceLayout& layout,
                                      const MegatronBlocks& blocks, const at::Tensor& x_sBM);
// -> dx [s, B, M]. Collective.
at::Tensor megatron_layer_backward(Group& group, const SequenceLayout& layout, const MegatronBlocks& blocks,
                                   const at::Tensor& dz_sBM, const MegatronSaved& saved);

// What a rank sends of x and y [S, B, M], exactly; e bytes of an element:
//
//                                                                       even shares, B e times
//   all-gather of x         B s M e (P-1)                               M S (P-1)/P
//   reduce-scatter of y     B (S - s) M e                               M S (P-1)/P
//   forward two of each; backward their adjoints, and x gathered again for the weights' gradients: 4 and 2
ExchangeBytes megatron_exchange_bytes(int64_t batch, int64_t hidden, int64_t element_bytes,
                                      const SequenceLayout& layout, int rank);

}  // namespace trireme
