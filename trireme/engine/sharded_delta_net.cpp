#include "trireme/engine/sharded_delta_net.h"

namespace trireme {

ShardedDeltaNet::ShardedDeltaNet(Group& ranks, const DeltaHeads& heads, const ColumnMixing& mixing)
    : ranks_(ranks),
      heads_(heads),
      mixing_(mixing),
      share_(delta_share(heads, ranks.rank(), ranks.size())),
      columns_(delta_columns(heads, ranks.size())),
      output_(delta_output_columns(heads, ranks.size())) {}

at::Tensor ShardedDeltaNet::exchange(const at::Tensor& columns_BsND, const Inputs& inputs) {
  return to_columns(ranks_, inputs.layout, columns_, columns_BsND.flatten(2));
}

at::Tensor ShardedDeltaNet::forward(at::Tensor columns_BSc, const Inputs& inputs) {
  const at::Tensor o_BSo = mixing_.forward(inputs.tensors, share_, columns_BSc, inputs.document_begins_BS);
  columns_BSc = at::Tensor();
  return to_tokens(ranks_, inputs.layout, output_, o_BSo).unflatten(2, {heads_.value, heads_.value_width});
}

at::Tensor ShardedDeltaNet::backward(at::Tensor do_BsVD, at::Tensor columns_BSc, const Inputs& inputs,
                                     UnitGradients& gradients) {
  at::Tensor do_BSo = to_columns(ranks_, inputs.layout, output_, do_BsVD.flatten(2));
  do_BsVD = at::Tensor();
  const at::Tensor dcolumns_BSc =
      mixing_.backward(inputs.tensors, gradients, share_, columns_BSc, inputs.document_begins_BS, do_BSo);
  do_BSo = columns_BSc = at::Tensor();
  return to_tokens(ranks_, inputs.layout, columns_, dcolumns_BSc).unsqueeze(2);
}

}  // namespace trireme
