// Bytes of this rank's calls of attention: one for each head chunk (attention/head_chunks.cpp), or a single one.
#pragma once

#include <vector>

#include "trireme/forecast/attention_snapshots.h"

namespace trireme {

struct HeadChunkBytes {
  int64_t arriving;   // q, k and v that come with the chunk
  int64_t pair;       // d(o) and o, which come beside them in backward
  int64_t staying;    // k and v of the chunk where some came before, and of its last head
  int64_t o;          // that forward gives
  int64_t gradients;  // that backward gives: in fp32 where a head goes on in another chunk
  int64_t leaving;    // of these, in the stored type
  // dk and dv of such a head, while the chunk is computed and once it is.
  int64_t sums_before, sums_after;
  // Of this rank's tokens, the heads of every rank: q, k and v that are sent, o and gradients that come back.
  int64_t qkv_message, o_message, gradient_message;
  AttentionSnapshots attention;
};

std::vector<HeadChunkBytes> head_chunk_bytes(const ForecastInputs& inputs);

}  // namespace trireme
