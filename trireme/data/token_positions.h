// Each token's position within its document, for rotary and learned position embeddings.
#pragma once

#include <ATen/ATen.h>

#include "trireme/data/token_batch.h"

namespace trireme {

// [B * s] int64 on the CPU, sample by sample, in the order of the batch's tokens. `rank` is among the ranks
// that share a sample.
at::Tensor positions_in_documents(const TokenBatch& batch, int rank);

}  // namespace trireme
