// Of a step whose loss or gradient norm is not finite: which tensor is at fault.
#pragma once

#include <string>

#include "trireme/engine/training_engine.h"

namespace trireme {

// One sentence without a full stop, the same on every rank: the first weight that is not finite; else the ranks whose own
// tokens' loss is not; else the first gradient that is not, in the order in which the backward made them. `rank_loss` is
// this rank's. Collective; no update may be under way.
std::string not_finite_tensor(EngineParts& parts, double rank_loss);

}  // namespace trireme
