// Of a step whose loss or gradient norm is not finite: which tensor is at fault.
#pragma once

#include <string>

#include "trireme/comm/group.h"
#include "trireme/model/model_layout.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

struct NotFinite {
  enum class In { weights, step } in;  // what is not finite: weights, before the step; or what the step made
  std::string text;                    // one sentence without a full stop
};

// The same on every rank: the first weight that is not finite, or not in 16 bits where the model computes in
// them; else the ranks whose own tokens' loss is not; else the first gradient that is not, in the order in
// which the backward made them; `gradients` is null where they were not kept (--update_in_backward).
// `rank_loss` is this rank's. Collective over `all` ranks; no update may be under way.
NotFinite not_finite_tensor(const std::vector<UnitSpec>& units, ParameterStore& parameters,
                            GradientStore* gradients, Group& all, at::Device device, double rank_loss);

}  // namespace trireme
