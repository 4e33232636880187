// Forward: the recurrence over the chunks of each segment.
#include "trireme/kernels/delta_rule.h"

#include <ATen/core/grad_mode.h>

#include "trireme/kernels/delta_recurrence.h"
#include "trireme/kernels/delta_rule_segment.h"

namespace trireme {
namespace {

// state_NDD becomes that after the segment; o [n, B, V, C, Dv].
at::Tensor run_segment(const DeltaRuleCall& call, const DeltaSegment& s, const at::Tensor& state_NDD) {
  const DeltaRuleSizes& z = call.sizes();
  const int64_t heads = z.batch * z.value_heads;
  // [R; o]
  at::Tensor both_nNCD = at::empty({s.chunks, heads, 2 * kDeltaChunk_tokens, z.value_width}, call.options());
  at::Tensor values = both_nNCD.narrow(2, 0, kDeltaChunk_tokens).unflatten(1, {z.batch, z.value_heads});
  at::mul_out(values, s.v_nBVCD, s.beta_nBVC1);
  const at::Tensor o_nNCD = both_nNCD.narrow(2, kDeltaChunk_tokens, kDeltaChunk_tokens).zero_();
  const at::Tensor updates_nNCD = at::empty(o_nNCD.sizes(), call.options());  // U
  delta_forwards(s, both_nNCD, updates_nNCD, state_NDD, {});
  o_nNCD.flatten(0, 1).baddbmm_(s.scores_nBVCC.flatten(0, 2), updates_nNCD.flatten(0, 1));
  return o_nNCD.unflatten(1, {z.batch, z.value_heads});
}

}  // namespace

DeltaRuleOutput delta_rule(const DeltaRuleInputs& inputs, const DeltaRuleSpec& spec, DeltaStates states) {
  const at::NoGradGuard no_grad;
  const DeltaRuleCall call(inputs, spec);
  const DeltaRuleSizes& z = call.sizes();
  DeltaRuleOutput output{at::empty(inputs.v_BSVD.sizes(), inputs.v_BSVD.options()), {}};
  if (states == DeltaStates::kept)
    output.states_GBVDD =
        at::empty({z.segments(), z.batch, z.value_heads, z.key_width, z.value_width}, call.options());
  if (call.empty()) return output;
  const at::Tensor state_NDD =
      at::zeros({z.batch * z.value_heads, z.key_width, z.value_width}, call.options());
  for (int64_t index = 0; index < z.segments(); ++index) {
    if (states == DeltaStates::kept)
      output.states_GBVDD[index].copy_(state_NDD.view(output.states_GBVDD[0].sizes()));
    const DeltaSegment segment = call.segment(index);
    call.put(output.o_BSVD, run_segment(call, segment, state_NDD), segment);
  }
  return output;
}

}  // namespace trireme
