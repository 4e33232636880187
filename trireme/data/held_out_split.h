// Stretches of a set's token stream: what is trained on, and what is held out of it.
#pragma once

#include "trireme/base/token_span.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {

struct HeldOutSplit {
  TokenSpan train;
  TokenSpan held_out;
};

TokenSpan whole_set(const IndexedDataset& dataset);
// The last `fraction` of the tokens, cut at the nearest document border that leaves something on both sides;
// a single document is cut in itself. Throws ConfigError unless 0 < fraction < 1.
HeldOutSplit split_held_out(const IndexedDataset& dataset, double fraction);

}  // namespace trireme
