// A DeltaNet of one layer over the ranks that share a sample: Ulysses' exchanges (arXiv 2309.14509) of its
// columns, since its heads do not see each other and its convolution filters each column alone.
//
//   forward    columns_BsC --to_columns--> columns_BSc --mix (the family's)--> o_BSo --to_tokens--> o_BsVD
//   backward   do_BsVD --to_columns--> do_BSo --mix--> dcolumns_BSc --to_tokens--> dcolumns_BsC
//
// C columns of all heads, c of this rank's (attention/delta_heads.h), o its value heads' values. Every rank
// that shares the sample has all tokens of its heads, with a ring too: tokens are put in the order of the
// sample before they are mixed, and back.
#pragma once

#include "trireme/attention/column_exchange.h"
#include "trireme/attention/delta_heads.h"
#include "trireme/base/sample_layout.h"
#include "trireme/comm/group.h"
#include "trireme/model/column_mixing.h"

namespace trireme {

class ShardedDeltaNet {
 public:
  // `ranks`, all that share a sample, outlive this. Not collective.
  ShardedDeltaNet(Group& ranks, const DeltaHeads& heads, const ColumnMixing& mixing);

  struct Inputs {
    const LayerTensors& tensors;
    const SampleLayout& layout;
    const at::Tensor& document_begins_BS;  // kernels/document_begins.h, or undefined
  };
  // [B, s, 1, C] -> [B, S, c]. One all-to-all. Collective.
  at::Tensor exchange(const at::Tensor& columns_BsND, const Inputs& inputs);
  // -> o [B, s, V, Dv]. The columns are freed before it is sent, unless the caller keeps them. One all-to-all.
  // Collective.
  at::Tensor forward(at::Tensor columns_BSc, const Inputs& inputs);
  // -> d(columns) [B, s, 1, C], and added to the gradients. Two all-to-alls. Collective.
  at::Tensor backward(at::Tensor do_BsVD, at::Tensor columns_BSc, const Inputs& inputs,
                      UnitGradients& gradients);

 private:
  Group& ranks_;
  const DeltaHeads heads_;
  const ColumnMixing mixing_;
  const DeltaShare share_;               // this rank's
  const ColumnShares columns_, output_;  // of every rank: of what comes, and of o
};

}  // namespace trireme
