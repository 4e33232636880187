// What it takes to make again what a layer did not keep: the measure by which keep_order.h and
// choose_recompute.h compare plans.
//
//   part        made again in backward                        bytes a token (e stored, t of tiles)
//   attention   4 D H keys FLOPs; with Ulysses o sent         H D e + 4 H
//   qkv         product M x (H + 2K) D (H + K where keys are  (H + 2K) D e; with Ulysses H D e more (kOHeads)
//               values), norm, rotation; with Ulysses q, k, v
//               and o sent
//   mlp         products H D x M and M x 2 I (M x I too       M t + 2 I t (of encoders M t + (I + M) t)
//               where a norm follows; of encoders twice)
//
// A layer whose forward runs a second time for the next one's input (--checkpoint_every) makes its part mlp
// with the down projection once more; without attention's output also its part qkv. Not counted: a ring's
// rounds, what ZeRO 3 gathers, what block-sparse layouts leave out.
#pragma once

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// Of a token of a layer, the mean of all layers. In FLOPs of products that take as long: the same on every rank.
struct PartCost {
  double product_flops;
  double bytes;
  double flops_a_byte() const { return product_flops / bytes; }
};
// `inputs` have a sample's tokens, and its documents' if it holds several.
PartCost cost_of(KeptPart part, const ForecastInputs& inputs);

// Of a token, all layers together: what backward makes again with `plan`, by the same measure.
double product_flops_made_again(const RecomputePlan& plan, const ForecastInputs& inputs);

}  // namespace trireme
