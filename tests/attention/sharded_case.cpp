#include "tests/attention/sharded_case.h"

#include <cmath>

#include "trireme/attention/ulysses.h"
#include "trireme/comm/thread_world.h"

namespace trireme_test {

using namespace trireme;

namespace {

struct Qkv {
  at::Tensor q, k, v;
};
Qkv split(const ShardedCase& c, const at::Tensor& qkv) {
  return {qkv.narrow(2, 0, c.query_heads), qkv.narrow(2, c.query_heads, c.kv_heads),
          qkv.narrow(2, c.query_heads + c.kv_heads, c.kv_heads)};
}

}  // namespace

ScoreForm ShardedCase::scores() const {
  return {1 / std::sqrt(static_cast<double>(width)), cap};
}

std::vector<int> ShardedCase::kv_of_query() const {
  std::vector<int> map;
  map.reserve(query_heads);
  for (int64_t head = 0; head < query_heads; ++head)
    map.push_back(static_cast<int>(head * kv_heads / query_heads));
  return map;
}

std::ostream& operator<<(std::ostream& out, const ShardedCase& c) {
  out << "U " << c.ulysses << " R " << c.ring << (c.method == RingMethod::ring ? " ring" : " gather")
      << " chunks " << c.head_chunks << " B " << c.batch << " S " << c.tokens << " H/K " << c.query_heads
      << "/" << c.kv_heads << " D " << c.width
      << (c.mask.causality == Causality::causal ? " causal" : " full") << " window " << c.mask.window
      << " cap " << c.cap;
  if (!c.mask.sparse.dense())
    out << " blocks of " << c.mask.sparse.block_tokens << " local " << c.mask.sparse.local_blocks
        << " global " << c.mask.sparse.global_blocks << " stride " << c.mask.sparse.stride_blocks;
  for (const std::vector<int64_t>& sample : c.cu_seqlens) {
    out << " documents";
    for (const int64_t cut : sample) out << " " << cut;
  }
  return out << " " << c.dtype << " " << name_of(c.kernel) << (c.keeps_by_heads ? " keeps by heads" : "");
}

ShardedInputs draw_inputs(const ShardedCase& c, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const auto draw = [&](int64_t heads) {
    return at::randn({c.batch, c.tokens, heads, c.width}, generator, at::kFloat).to(c.dtype);
  };
  return {draw(c.query_heads + 2 * c.kv_heads), draw(c.query_heads)};
}

ShardedResult nothing_yet(const ShardedCase& c) {
  const auto options = at::TensorOptions(c.dtype);
  const at::Tensor dqkv =
      at::full({c.batch, c.tokens, c.query_heads + 2 * c.kv_heads, c.width}, NAN, options);
  const Qkv parts = split(c, dqkv);
  return {at::full({c.batch, c.tokens, c.query_heads, c.width}, NAN, options),
          at::full({c.batch, c.query_heads, c.tokens}, NAN, at::kFloat), parts.q, parts.k, parts.v};
}

void run_rank(const Mesh& mesh, const ShardedCase& c, const ShardedInputs& in, ShardedResult& whole) {
  const SampleLayout layout = c.layout();
  const int rank = mesh.sp->rank(), ring_index = layout.ring_index(rank), u = layout.ulysses_rank(rank);
  const HeadShares shares = share_heads(c.query_heads, c.kv_heads, c.ulysses);
  const auto local = make_local_attention(c.kernel, at::kCPU, c.dtype);
  const auto attention =
      make_sharded_attention(*mesh.ulysses, make_sequence_attention(c.method, *mesh.ring, *local), shares,
                             c.scores(), c.head_chunks);
  const SequenceMask mask =
      make_sequence_mask(c.mask, documents_from(c.cu_seqlens), layout, ring_index, c.method);

  const at::Tensor tokens = tokens_of(layout.spans(rank));
  const at::Tensor qkv_BsND = in.qkv.index_select(1, tokens), d_o = in.d_o.index_select(1, tokens);
  at::Tensor qkv = attention->exchange_qkv(qkv_BsND, mask);
  ShardedOutput out = attention->forward(qkv, mask);
  if (!c.keeps_by_heads) {
    qkv = attention->exchange_qkv(qkv_BsND, mask);
    out.o_BShD = at::Tensor();
  }
  const Qkv gradients = split(c, attention->backward(d_o, qkv, out, mask));

  whole.o.index_copy_(1, tokens, out.o_BsHD);
  whole.dq.index_copy_(1, tokens, gradients.q);
  whole.dk.index_copy_(1, tokens, gradients.k);
  whole.dv.index_copy_(1, tokens, gradients.v);
  const HeadRange& heads = shares.query[u];
  whole.lse.slice(1, heads.begin, heads.end)
      .index_copy_(2, tokens_of(layout.ring_spans(ring_index)), out.lse_BhS);
}

ShardedResult run_on_ranks(const ShardedCase& c, const ShardedInputs& in) {
  ShardedResult whole = nothing_yet(c);
  run_ranks_as_threads(c.ranks(), [&](World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = c.ulysses, .ring = c.ring});
    run_rank(mesh, c, in, whole);
  });
  return whole;
}

OracleResult truth_of(const ShardedCase& c, const ShardedInputs& in, at::ScalarType kept_o) {
  const Qkv x = split(c, in.qkv);
  return attention_oracle(x.q, x.k, x.v, in.d_o, c.scores().scale,
                          seen_keys(oracle_mask(c.mask, c.cu_seqlens), c.batch, c.tokens), c.kv_of_query(),
                          kept_o, c.cap);
}

OracleResult plain_of(const ShardedCase& c, const ShardedInputs& in) {
  const Qkv x = split(c, in.qkv);
  return plain_low_precision(x.q, x.k, x.v, in.d_o, c.scores().scale,
                             seen_keys(oracle_mask(c.mask, c.cu_seqlens), c.batch, c.tokens), c.kv_of_query(),
                             c.cap);
}

}  // namespace trireme_test
