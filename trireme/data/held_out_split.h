// Spans of a set's token stream: the tokens to train on, and the tokens held out.
#pragma once

#include <string>

#include "trireme/base/token_span.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {

struct HeldOutSplit {
  TokenSpan train;
  TokenSpan held_out;
};

TokenSpan whole_set(const IndexedDataset& dataset);
// Holds out the last `fraction` of the tokens, above 0 and below 1. Cuts at the nearest document border that
// leaves tokens on both sides, or inside a document where that border would hold out less than half or more
// than twice of what is asked; a set with prompts at a border wherever it has one inside.
HeldOutSplit split_held_out(const IndexedDataset& dataset, double fraction);
// For people: how much, and which documents; unless the set was shuffled, these are not like the others.
std::string held_out_note(const IndexedDataset& dataset, TokenSpan held_out);

}  // namespace trireme
