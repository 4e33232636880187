// This rank's slice of one micro-batch, which the loader hands to the engine.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/documents.h"
#include "trireme/base/sample_layout.h"

namespace trireme {

constexpr int64_t kIgnoredLabel = -100;

struct TokenBatch {
  at::Tensor tokens;    // [B, s] int64, on the CPU: those of layout.spans(rank), one span after another
  at::Tensor targets;   // [B, s] int64: the token that each position must predict (already shifted), or -100
  SampleLayout layout;  // which tokens of a sample this rank holds
  std::vector<Documents> documents;  // of each whole sample; empty: each sample is one document
};

// One optimizer step: all its micro-batches, so that the number of valid targets is known before backward.
using StepBatches = std::vector<TokenBatch>;

}  // namespace trireme
