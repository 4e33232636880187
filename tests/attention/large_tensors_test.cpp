// Exchanges and the CPU kernel on tensors of more than 2^31 elements: what lies beyond is what it is in a
// tensor that holds nothing else. About 13 GiB of memory, and two to three minutes on two cores.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "trireme/attention/ulysses.h"
#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/kernels/local_attention.h"

#include "tests/kernels/attention_oracle.h"
#include "tests/support/byte_units.h"
#include "tests/support/memory_at_hand.h"

namespace trireme {
namespace {

using testing::kGiB;
using trireme_test::OracleResult;
using trireme_test::relative_error;
using trireme_test::SeenKeys;

constexpr int64_t k2To31 = int64_t{1} << 31;

// Bytes [n, heads, D] of tokens [begin, begin + n) of a sample: no two tokens that are a power of two apart
// are alike, nor two heads.
class BytesOfTokens {
 public:
  BytesOfTokens(int64_t heads, int64_t width)
      : of_heads_(at::randint(0, 256, {1, heads, width}, at::detail::createCPUGenerator(3), at::kByte)) {}
  at::Tensor of(const TokenSpan& tokens, const HeadRange& heads) const {
    return at::add(
        at::arange(tokens.begin, tokens.end, at::kLong).remainder(251).to(at::kByte).view({-1, 1, 1}),
        of_heads_.slice(1, heads.begin, heads.end));
  }
  at::Tensor all_heads_of(const TokenSpan& tokens) const { return of(tokens, {0, of_heads_.size(1)}); }

 private:
  at::Tensor of_heads_;
};

// Tokens of x [1, n, heads, D] that are not `tokens` of `bytes`.
int64_t wrong_tokens(const at::Tensor& x, const BytesOfTokens& bytes, const TokenSpan& tokens,
                     const HeadRange& heads) {
  int64_t wrong = 0;
  constexpr int64_t kPiece = 1 << 15;
  for (int64_t at = 0; at < tokens.size(); at += kPiece) {
    const int64_t count = std::min(kPiece, tokens.size() - at), first = tokens.begin + at;
    const at::Tensor expected = bytes.of({first, first + count}, heads);
    const at::Tensor got = x[0].narrow(0, at, count);
    if (!at::equal(got, expected)) wrong += got.ne(expected).flatten(1).any(1).sum().item<int64_t>();
  }
  return wrong;
}

constexpr auto kMinutes = std::chrono::minutes(5);

TEST(LargeTensors, queries_keys_and_values_travel_to_their_heads) {
  if (const std::string lack = testing::lack_of_memory(14 * kGiB); !lack.empty()) GTEST_SKIP() << lack;
  const int64_t heads = 8, kv_heads = 4, width = 128, tokens = 2 * ((int64_t{1} << 20) + 1000);
  const BytesOfTokens q(heads, width), k(kv_heads, width), v(kv_heads, width);
  run_ranks_as_threads(
      2,
      [&](World& world) {
        const Mesh mesh = make_mesh(world, {.ulysses = 2});
        const auto rank = static_cast<size_t>(mesh.ulysses->rank());
        const UlyssesPartition partition{{tokens, 2}, share_heads(heads, kv_heads, 2)};
        const int64_t begin = partition.layout.begin(mesh.ulysses->rank()), here = tokens / 2;
        const TokenSpan mine{begin, begin + here};
        const auto packed = [&] {
          return at::cat({q.all_heads_of(mine), k.all_heads_of(mine).add_(7), v.all_heads_of(mine).add_(91)},
                         1)
              .unsqueeze(0);
        };
        const at::Tensor qkv = seq_to_heads_qkv(*mesh.ulysses, partition, packed());
        ASSERT_GT(qkv.numel(), k2To31);
        const TokenSpan whole{0, tokens};
        const HeadRange &query = partition.heads.query[rank], &key_value = partition.heads.key_value[rank];
        const HeadsQkv got = split_qkv(qkv, query.size(), key_value.size());
        EXPECT_EQ(wrong_tokens(got.q, q, whole, query), 0);
        got.k.sub_(7);
        got.v.sub_(91);
        EXPECT_EQ(wrong_tokens(got.k, k, whole, key_value), 0);
        EXPECT_EQ(wrong_tokens(got.v, v, whole, key_value), 0);
      },
      kMinutes);
}

TEST(LargeTensors, the_attention_output_travels_to_its_tokens_and_its_gradient_back) {
  if (const std::string lack = testing::lack_of_memory(14 * kGiB); !lack.empty()) GTEST_SKIP() << lack;
  const int64_t heads = 16, width = 128, tokens = 2 * ((int64_t{1} << 20) + 1000);
  const BytesOfTokens o(heads, width);
  run_ranks_as_threads(
      2,
      [&](World& world) {
        const Mesh mesh = make_mesh(world, {.ulysses = 2});
        const auto rank = static_cast<size_t>(mesh.ulysses->rank());
        const UlyssesPartition partition{{tokens, 2}, share_heads(heads, heads, 2)};
        const HeadRange query = partition.heads.query[rank];
        const TokenSpan whole{0, tokens};
        const int64_t begin = partition.layout.begin(mesh.ulysses->rank());
        const at::Tensor by_tokens = heads_to_seq(*mesh.ulysses, partition, o.of(whole, query).unsqueeze(0));
        ASSERT_GT(by_tokens.numel(), k2To31);
        EXPECT_EQ(wrong_tokens(by_tokens, o, {begin, begin + tokens / 2}, {0, heads}), 0);
        const at::Tensor by_heads = seq_to_heads(*mesh.ulysses, partition, by_tokens);
        ASSERT_GT(by_heads.numel(), k2To31);
        EXPECT_EQ(wrong_tokens(by_heads, o, whole, query), 0);
      },
      kMinutes);
}

constexpr int64_t kHeads = 512, kWidth = 64;
constexpr int64_t kRowElements = kHeads * kWidth;
// Two tensors of [rows, heads, D] in one block of memory, one beginning some rows behind the other: as
// different as two blocks, in half the memory.
struct TwoOfRows {
  at::Tensor first, second;
};
TwoOfRows draw_rows(int64_t rows) {
  // A prime number of different rows: those that are a power of two apart differ.
  constexpr int64_t kDifferent = 1009, kBehind = 5;
  const at::Tensor drawn =
      at::randn({kDifferent, kRowElements}, at::detail::createCPUGenerator(4), at::kFloat).to(at::kBFloat16);
  const at::Tensor all = at::empty({rows + kBehind, kRowElements}, at::kBFloat16);
  for (int64_t row = 0; row < all.size(0); row += kDifferent) {
    const int64_t count = std::min(kDifferent, all.size(0) - row);
    all.narrow(0, row, count).copy_(drawn.narrow(0, 0, count));
  }
  return {all.narrow(0, 0, rows), all.narrow(0, kBehind, rows)};
}

double bound(const at::Tensor& plain, const at::Tensor& truth) {
  return std::max(2 * relative_error(plain, truth), 4e-3);  // one rounding of a result near the largest
}

// Of some rows: error to the truth at most twice that of the plain implementation in bf16.
void expect_law(const AttentionOutput& out, const AttentionGradients& got, const OracleResult& truth,
                const OracleResult& plain) {
  EXPECT_LT(relative_error(out.lse, truth.lse), 1e-3);
  EXPECT_LE(relative_error(out.o, truth.o), bound(plain.o, truth.o));
  EXPECT_LE(relative_error(got.dq, truth.dq), bound(plain.dq, truth.dq));
  EXPECT_LE(relative_error(got.dk, truth.dk), bound(plain.dk, truth.dk));
  EXPECT_LE(relative_error(got.dv, truth.dv), bound(plain.dv, truth.dv));
}

// Short documents in `batch` samples, 512 query heads over one key/value head: q, do, o and dq pass 2^31
// elements 256 tokens before the end of the last sample. Each document alone has the same numbers.
void expect_documents_to_be_as_alone(int64_t batch) {
  const int64_t tokens = (k2To31 / kRowElements + 256) / batch, first_beyond = tokens - 256;
  std::vector<int64_t> cu_seqlens;
  cu_seqlens.reserve(static_cast<size_t>(tokens / 64) + 4);
  for (int64_t token = 0; token < tokens - 128; token += 64) cu_seqlens.push_back(token);
  for (const int64_t left : {128, 88, 80, 0}) cu_seqlens.push_back(tokens - left);
  const std::vector<Documents> documents(static_cast<size_t>(batch), Documents(cu_seqlens));

  const TwoOfRows rows = draw_rows(batch * tokens);
  const at::Tensor q = rows.first.view({batch, tokens, kHeads, kWidth});
  const at::Tensor d_o = rows.second.view({batch, tokens, kHeads, kWidth});
  ASSERT_EQ(q.numel(), k2To31 + 256 * kRowElements);
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor k = at::randn({batch, tokens, 1, kWidth}, generator, at::kFloat).to(at::kBFloat16);
  const at::Tensor v = at::randn({batch, tokens, 1, kWidth}, generator, at::kFloat).to(at::kBFloat16);
  AttentionSpec spec;
  spec.scores.scale = 1 / std::sqrt(static_cast<double>(kWidth));
  spec.keys = visible_keys({}, documents, tokens, {{0, tokens}}, {{0, tokens}});
  spec.kv_of_query.assign(kHeads, 0);

  const auto kernel = make_local_attention(AttentionKernel::flash, at::kCPU, at::kBFloat16);
  const AttentionOutput out = kernel->forward(q, k, v, spec);
  const AttentionGradients got = kernel->backward(d_o, q, k, v, out, spec);

  const auto count = static_cast<int64_t>(cu_seqlens.size()) - 1;
  int64_t looked_at = 0;
  for (int64_t sample = 0; sample < batch; ++sample)
    for (int64_t document = 0; document < count; ++document) {
      const int64_t begin = cu_seqlens[static_cast<size_t>(document)],
                    end = cu_seqlens[static_cast<size_t>(document) + 1];
      if (document != 0 && document != count / 2 && end < first_beyond) continue;
      ++looked_at;
      SCOPED_TRACE(::testing::Message()
                   << "sample " << sample << " of " << batch << ", tokens from " << begin);
      const auto own = [&](const at::Tensor& x) {
        return x.narrow(0, sample, 1).narrow(1, begin, end - begin);
      };
      const SeenKeys seen = trireme_test::seen_keys({}, 1, end - begin);
      const auto truth = trireme_test::attention_oracle(own(q), own(k), own(v), own(d_o), spec.scores.scale,
                                                        seen, spec.kv_of_query);
      const auto plain = trireme_test::plain_low_precision(own(q), own(k), own(v), own(d_o),
                                                           spec.scores.scale, seen, spec.kv_of_query);
      const at::Tensor lse = out.lse.narrow(0, sample, 1).narrow(2, begin, end - begin);
      expect_law({own(out.o), lse}, {own(got.dq), own(got.dk), own(got.dv)}, truth, plain);
    }
  EXPECT_EQ(looked_at, batch * (2 + 1 + 5));
}

TEST(LargeTensors, attention_of_query_rows_beyond_is_that_of_their_documents_alone) {
  if (const std::string lack = testing::lack_of_memory(14 * kGiB); !lack.empty()) GTEST_SKIP() << lack;
  for (const int64_t batch : {1, 2}) expect_documents_to_be_as_alone(batch);
}

// The last rows of a sample, a window of it, and 512 key/value heads: k, v, dk and dv pass 2^31 elements
// before the keys that are seen.
TEST(LargeTensors, attention_over_key_rows_beyond_is_that_over_these_rows_alone) {
  if (const std::string lack = testing::lack_of_memory(14 * kGiB); !lack.empty()) GTEST_SKIP() << lack;
  const int64_t tokens = k2To31 / kRowElements + 256, queries = 64, seen_tokens = 128, window = 50;
  const TwoOfRows rows = draw_rows(tokens);
  const at::Tensor k = rows.first.view({1, tokens, kHeads, kWidth});
  const at::Tensor v = rows.second.view({1, tokens, kHeads, kWidth});
  ASSERT_GT(k.narrow(1, 0, tokens - seen_tokens).numel(), k2To31);
  auto generator = at::detail::createCPUGenerator(6);
  const auto draw = [&] {
    return at::randn({1, queries, kHeads, kWidth}, generator, at::kFloat).to(at::kBFloat16);
  };
  const at::Tensor q = draw(), d_o = draw();
  AttentionSpec spec;
  spec.scores.scale = 1 / std::sqrt(static_cast<double>(kWidth));
  spec.keys = visible_keys({.window = window}, {}, tokens, {{tokens - queries, tokens}}, {{0, tokens}});
  spec.kv_of_query.resize(kHeads);
  std::iota(spec.kv_of_query.begin(), spec.kv_of_query.end(), 0);

  const auto kernel = make_local_attention(AttentionKernel::flash, at::kCPU, at::kBFloat16);
  const AttentionOutput out = kernel->forward(q, k, v, spec);
  const AttentionGradients got = kernel->backward(d_o, q, k, v, out, spec);

  const auto seen_rows = [&](const at::Tensor& x) { return x.narrow(1, tokens - seen_tokens, seen_tokens); };
  SeenKeys seen =
      trireme_test::seen_keys({.causal = true, .window = window, .document_of_token = {}}, 1, seen_tokens);
  seen[0] = seen[0].narrow(0, seen_tokens - queries, queries);
  const auto truth = trireme_test::attention_oracle(q, seen_rows(k), seen_rows(v), d_o, spec.scores.scale,
                                                    seen, spec.kv_of_query);
  const auto plain = trireme_test::plain_low_precision(q, seen_rows(k), seen_rows(v), d_o, spec.scores.scale,
                                                       seen, spec.kv_of_query);
  expect_law(out, {got.dq, seen_rows(got.dk), seen_rows(got.dv)}, truth, plain);
  for (const at::Tensor& gradient : {got.dk, got.dv})
    for (int64_t row = 0; row < tokens - seen_tokens; row += 4096) {
      const int64_t count = std::min<int64_t>(4096, tokens - seen_tokens - row);
      ASSERT_EQ(at::count_nonzero(gradient.narrow(1, row, count)).item<int64_t>(), 0)
          << "keys from " << row << ", which nothing sees";
    }
}

}  // namespace
}  // namespace trireme
