#include "trireme/forecast/head_chunk_bytes.h"

#include "trireme/attention/head_shares.h"

namespace trireme {
namespace {

// Heads of one call.
struct CallHeads {
  int64_t query, key_value, arriving, leaving;
  // Of the calls of all ranks: what their messages have, a chunk's being cut by the same rule.
  int64_t all_query = 0, all_arriving = 0, all_leaving = 0;
};

std::vector<CallHeads> calls_of(const ForecastInputs& inputs) {
  const int64_t all = inputs.rank_kv_heads;
  if (inputs.head_chunks == 1) return {{inputs.rank_heads, all, all, all}};
  const auto rank = static_cast<size_t>(inputs.sp_rank % inputs.ulysses);
  std::vector<CallHeads> calls;
  for (const HeadChunk& chunk : cut_heads(
           share_heads(inputs.model.heads, inputs.model.kv_heads, inputs.ulysses), inputs.head_chunks)) {
    CallHeads& call = calls.emplace_back(
        CallHeads{chunk.needed.query[rank].size(), chunk.needed.key_value[rank].size(),
                  chunk.arriving.key_value[rank].size(), chunk.leaving.key_value[rank].size()});
    for (size_t each = 0; each < chunk.needed.query.size(); ++each) {
      call.all_query += chunk.needed.query[each].size();
      call.all_arriving += chunk.arriving.key_value[each].size();
      call.all_leaving += chunk.leaving.key_value[each].size();
    }
  }
  return calls;
}

}  // namespace

std::vector<HeadChunkBytes> head_chunk_bytes(const ForecastInputs& inputs) {
  const int64_t values = inputs.batch * inputs.ring_tokens * inputs.model.head_dim;  // of a head
  const int64_t head = values * inputs.storage_bytes;
  // Of this rank's tokens.
  const int64_t sent_head = inputs.batch * inputs.shard_tokens * inputs.model.head_dim * inputs.storage_bytes;
  std::vector<HeadChunkBytes> chunks;
  for (const CallHeads& call : calls_of(inputs)) {
    const bool goes_on = call.leaving < call.key_value, went_on = call.arriving < call.key_value;
    const int64_t gradient_bytes = goes_on || went_on ? kFloat_bytes : inputs.storage_bytes;
    const int64_t sums = 2 * values * kFloat_bytes;
    chunks.push_back({.arriving = head * (call.query + 2 * call.arriving),
                      .pair = 2 * head * call.query,
                      .staying = 2 * head * ((went_on ? call.key_value : 0) + (call.key_value > 0 ? 1 : 0)),
                      .o = head * call.query,
                      .gradients = values * gradient_bytes * (call.query + 2 * call.key_value),
                      .leaving = head * (call.query + 2 * call.leaving),
                      .sums_before = went_on ? sums : 0,
                      .sums_after = goes_on ? sums : 0,
                      .qkv_message = sent_head * (call.all_query + 2 * call.all_arriving),
                      .o_message = sent_head * call.all_query,
                      .gradient_message = sent_head * (call.all_query + 2 * call.all_leaving),
                      .attention = attention_snapshots(inputs, call.query, call.key_value, gradient_bytes)});
  }
  return chunks;
}

}  // namespace trireme
