// The two all-to-alls of Ulysses (arXiv 2309.14509) for columns: one trades tokens for columns, the other
// trades back.
//
//   to columns   x_BsC slices for each rank  ->  [B, S, c]     c: this rank's columns
//   to tokens    x_BSc                       ->  [B, s, C]     columns that several ranks have are summed
//
// S are all tokens in the order of the sample. Ranks of a ring hold several pieces of it: then what is
// received is put in order, and back.
#pragma once

#include <ATen/ATen.h>

#include "trireme/attention/delta_heads.h"
#include "trireme/base/sample_layout.h"
#include "trireme/comm/group.h"

namespace trireme {

// `group`: all ranks of the layout. A view of the receive buffer, without a ring; of one rank the input
// itself. One all-to-all. Collective.
at::Tensor to_columns(Group& group, const SampleLayout& layout, const ColumnShares& shares,
                      const at::Tensor& x_BsC);
// The adjoint: sums are fp32 (fp64 of fp64), in rank order, rounded once. One all-to-all. Collective.
at::Tensor to_tokens(Group& group, const SampleLayout& layout, const ColumnShares& shares,
                     const at::Tensor& x_BSc);

}  // namespace trireme
