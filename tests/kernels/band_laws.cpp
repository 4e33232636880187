#include "tests/kernels/band_laws.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "trireme/base/documents.h"
#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"

namespace trireme_test {

using namespace trireme;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t count) { return between(1, count) == 1; }

 private:
  std::mt19937_64 random_;
};

Documents draw_documents(Draw& draw, int64_t tokens) {
  const int64_t rarity = draw.one_in(3) ? 2 : draw.between(1, 1 + tokens / 2);  // 1: every token alone
  std::vector<int64_t> cuts{0};
  for (int64_t token = 1; token < tokens; ++token)
    if (draw.one_in(rarity)) cuts.push_back(token);
  cuts.push_back(tokens);
  return Documents(cuts);
}

// Rows hold q, k and v side by side. The whole is copied to a device: copying a view
// alone would make it contiguous.
struct Inputs {
  Inputs(const at::Tensor& qkv, const at::Tensor& d_o_in, int64_t rows, int64_t keys, int64_t kv_heads)
      : q(qkv.narrow(1, 0, rows).narrow(2, 0, d_o_in.size(2))),
        k(qkv.narrow(1, 0, keys).narrow(2, d_o_in.size(2), kv_heads)),
        v(qkv.narrow(1, 0, keys).narrow(2, d_o_in.size(2) + kv_heads, kv_heads)),
        d_o(d_o_in) {}
  at::Tensor q, k, v, d_o;
};

struct Drawn {
  at::Tensor qkv, d_o;  // on the CPU
  int64_t rows, keys, kv_heads;
  AttentionSpec spec;
  Inputs on(at::Device device) const { return {qkv.to(device), d_o.to(device), rows, keys, kv_heads}; }
};

Drawn draw_inputs(const DrawnMask& mask, const LawCase& c, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto heads = static_cast<int64_t>(c.kv_of_query.size());
  const int64_t rows = mask.keys->queries(), keys = mask.keys->key_rows;
  const auto draw = [&](int64_t tokens, int64_t count) {
    if (seed % 2 == 1)  // samples one behind another
      return at::randn({mask.batch, tokens, count, c.width}, generator, at::kDouble).to(c.dtype);
    return at::randn({tokens, mask.batch, count, c.width}, generator, at::kDouble)
        .to(c.dtype)
        .transpose(0, 1);
  };
  return {draw(std::max(rows, keys), heads + 2 * c.kv_heads),
          draw(rows, heads),
          rows,
          keys,
          c.kv_heads,
          {{1 / std::sqrt(static_cast<double>(c.width)), c.cap}, mask.keys, c.kv_of_query, c.results}};
}

OracleResult truth_of(const Drawn& drawn, const DrawnMask& mask) {
  const Inputs in = drawn.on(at::kCPU);
  return attention_oracle(in.q, in.k, in.v, in.d_o, drawn.spec.scores.scale, seen_by(*mask.keys, mask.batch),
                          drawn.spec.kv_of_query, at::kDouble, drawn.spec.scores.cap);
}

void expect_near(const char* name, const at::Tensor& got, const at::Tensor& truth, double tolerance) {
  const double largest = truth.numel() == 0 ? 0 : truth.abs().max().item<double>();
  EXPECT_LE(largest_difference(got.cpu(), truth), tolerance * std::max(1.0, largest)) << name;
}

// Minus infinity at the same elements, and near in all others.
void expect_lse_near(const at::Tensor& got_lse, const at::Tensor& truth, double tolerance) {
  const at::Tensor got = got_lse.cpu();
  const double none = -std::numeric_limits<double>::infinity();
  ASSERT_TRUE(at::equal(got.eq(none), truth.eq(none)));
  expect_near("lse", got.masked_fill(got.eq(none), 0), truth.masked_fill(truth.eq(none), 0), tolerance);
}

void expect_gradients_near(const AttentionGradients& g, const OracleResult& truth, double tolerance) {
  expect_near("dq", g.dq, truth.dq, tolerance);
  expect_near("dk", g.dk, truth.dk, tolerance);
  expect_near("dv", g.dv, truth.dv, tolerance);
}

// What is left of the ranges when only key rows [begin, end) are here.
std::shared_ptr<const VisibleKeys> keys_between(const VisibleKeys& all, int64_t begin, int64_t end) {
  auto part = std::make_shared<VisibleKeys>(all);
  part->key_rows = end - begin;
  for (KeyRanges& ranges : part->samples)
    for (auto* side : {&ranges.begin, &ranges.end})
      for (int64_t& key : *side) key = std::clamp(key, begin, end) - begin;
  return part;
}

}  // namespace

DrawnMask draw_mask(uint64_t seed, int64_t most_tokens) {
  Draw draw(seed);
  const int64_t tokens = draw.between(1, draw.one_in(4) ? std::min<int64_t>(6, most_tokens) : most_tokens);
  LayerMask mask;
  if (draw.one_in(2)) mask.causality = Causality::full;
  if (draw.one_in(2)) mask.window = draw.between(1, draw.one_in(2) ? 5 : tokens + 3);
  DrawnMask drawn;
  drawn.batch = draw.between(1, 3);
  std::vector<Documents> documents;
  if (draw.one_in(2)) {
    documents.reserve(static_cast<size_t>(drawn.batch));
    for (int64_t b = 0; b < drawn.batch; ++b) documents.push_back(draw_documents(draw, tokens));
  }
  const SampleLayout layout{tokens, 1, static_cast<int>(draw.one_in(2) ? 1 : draw.between(2, 4))};
  const auto ring_index = [&] { return static_cast<int>(draw.between(0, layout.ring - 1)); };
  const int queries = ring_index(), keys = ring_index();
  const bool all_keys = draw.one_in(3);
  drawn.keys = visible_keys(mask, documents, tokens, layout.ring_spans(queries),
                            all_keys ? TokenSpans{{0, tokens}} : layout.ring_spans(keys));
  drawn.text = cat("seed ", seed, ": B ", drawn.batch, " tokens ", tokens, " window ", mask.window,
                   mask.causality == Causality::full ? " full" : " causal", " ring ", layout.ring,
                   " queries of ", queries, " keys of ", all_keys ? -1 : keys);
  for (const Documents& own : documents) {
    drawn.text += " documents";
    for (const int64_t cut : own.cu_seqlens()) drawn.text += cat(" ", cut);
  }
  return drawn;
}

DrawnMask whole(Causality causality, int64_t tokens, int64_t batch) {
  return {visible_keys({.causality = causality}, {}, tokens, {{0, tokens}}, {{0, tokens}}), batch, ""};
}

SeenKeys seen_by(const VisibleKeys& keys, int64_t batch) {
  SeenKeys seen;
  seen.reserve(static_cast<size_t>(batch));
  for (int64_t b = 0; b < batch; ++b) {
    const KeyRanges& ranges = keys.of(b);
    const at::Tensor begin = at::tensor(ranges.begin, at::kLong).unsqueeze(1),
                     end = at::tensor(ranges.end, at::kLong).unsqueeze(1);
    const at::Tensor key = at::arange(keys.key_rows, at::kLong).unsqueeze(0);
    seen.push_back(key.ge(begin).logical_and(key.lt(end)));
  }
  return seen;
}

LawCase draw_heads(uint64_t seed) {
  const std::vector<std::pair<std::vector<int>, int64_t>> maps = {
      {{0}, 1}, {{0, 0, 1, 1}, 2}, {{0, 0, 1}, 2}, {{0, 2}, 3}, {{0, 0, 0}, 1}, {{0, 1, 1, 2, 2}, 3}};
  LawCase c;
  const auto& [kv_of_query, kv_heads] = maps[seed % maps.size()];
  c.kv_of_query = kv_of_query;
  c.kv_heads = kv_heads;
  return c;
}

LawCase draw_in_16_bits(uint64_t seed, int64_t width, at::ScalarType dtype) {
  LawCase c = draw_heads(seed);
  c.width = width;
  c.dtype = dtype;
  c.tolerance = dtype == at::kBFloat16 ? 2e-2 : 3e-3;
  if (seed % 3 == 0) c.results = ResultDtype::fp32;
  return c;
}

void expect_definition(LocalAttention& kernel, const DrawnMask& mask, const LawCase& c, uint64_t seed) {
  const Drawn drawn = draw_inputs(mask, c, seed);
  const OracleResult truth = truth_of(drawn, mask);
  const auto [q, k, v, d_o] = drawn.on(c.device);
  const AttentionOutput out = kernel.forward(q, k, v, drawn.spec);
  const auto dtype = c.results == ResultDtype::fp32 ? at::kFloat : c.dtype;
  EXPECT_EQ(out.o.scalar_type(), dtype);
  EXPECT_EQ(out.lse.scalar_type(), at::kFloat);
  expect_near("o", out.o, truth.o, c.tolerance);
  expect_lse_near(out.lse, truth.lse, c.tolerance);
  const AttentionOutput saved{out.o.to(c.dtype), out.lse};
  const AttentionGradients g = kernel.backward(d_o, q, k, v, saved, drawn.spec);
  for (const at::Tensor& x : {out.o, out.lse, g.dq, g.dk, g.dv}) EXPECT_TRUE(x.is_contiguous());
  for (const at::Tensor& x : {g.dq, g.dk, g.dv}) EXPECT_EQ(x.scalar_type(), dtype);
  expect_gradients_near(g, truth, c.tolerance);
}

void expect_parts_to_sum_up(LocalAttention& kernel, const DrawnMask& mask, const LawCase& c, uint64_t seed) {
  const Drawn drawn = draw_inputs(mask, c, seed);
  const OracleResult truth = truth_of(drawn, mask);
  const Inputs in = drawn.on(c.device);
  const int64_t keys = mask.keys->key_rows, cut = static_cast<int64_t>(seed) % (keys + 1);
  const std::vector<RowRange> parts = {{0, cut}, {cut, keys}};
  std::vector<AttentionSpec> specs;
  std::vector<at::Tensor> k, v, o, lse;
  for (const RowRange& part : parts) {
    specs.push_back(drawn.spec);
    specs.back().keys = keys_between(*mask.keys, part.begin, part.end);
    specs.back().results = ResultDtype::fp32;
    k.push_back(in.k.slice(1, part.begin, part.end));
    v.push_back(in.v.slice(1, part.begin, part.end));
    const AttentionOutput out = kernel.forward(in.q, k.back(), v.back(), specs.back());
    o.push_back(out.o);
    lse.push_back(out.lse);
  }
  const at::Tensor all_lse = at::logaddexp(lse[0], lse[1]);
  const at::Tensor shift = all_lse.masked_fill(all_lse.isinf(), 0);
  const auto share = [&](size_t part) {
    return o[part] * (lse[part] - shift).exp().transpose(1, 2).unsqueeze(3);
  };
  const AttentionOutput merged{(share(0) + share(1)).to(c.dtype), all_lse};
  expect_near("o", merged.o, truth.o, c.tolerance);
  expect_lse_near(merged.lse, truth.lse, c.tolerance);
  std::vector<AttentionGradients> g;
  g.reserve(parts.size());
  for (size_t part = 0; part < parts.size(); ++part)
    g.push_back(kernel.backward(in.d_o, in.q, k[part], v[part], merged, specs[part]));
  expect_gradients_near({g[0].dq + g[1].dq, at::cat({g[0].dk, g[1].dk}, 1), at::cat({g[0].dv, g[1].dv}, 1)},
                        truth, c.tolerance);
}

}  // namespace trireme_test
