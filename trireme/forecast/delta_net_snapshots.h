// Bytes of a DeltaNet between its exchanges when they are fullest, beside the columns (and d(o)) that the
// caller holds. Read off model/families/delta_net_mixing.cpp.
#pragma once

#include "trireme/forecast/attention_snapshots.h"

namespace trireme {

// Of a model of layers with a DeltaNet (layer_kinds.h).
AttentionSnapshots delta_net_snapshots(const ForecastInputs& inputs);

}  // namespace trireme
