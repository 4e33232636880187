// Counted bytes are the formulas', and both are what counting tokens and heads gives.
#include "bench/comm/exchange_rate.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What each rank sends, told one token and one head at a time. It knows the layout, and none of the formulas.
class CountedBytes {
 public:
  CountedBytes(const MethodPartition& shape, const ExchangeRateOptions& options)
      : shape_(shape),
        options_(options),
        element_(options.dtype == at::kFloat ? 4 : 2),
        layout_{options.tokens, shape.ulysses, shape.ring},
        sent_(static_cast<size_t>(shape.ranks())) {
    if (shape.method == ExchangeMethod::megatron) {
      megatron();
      return;
    }
    for (int ring_index = 0; ring_index < shape.ring; ++ring_index) heads_within(ring_index);
    for (int u = 0; u < shape.ulysses; ++u) {
      if (shape.method == ExchangeMethod::gather || shape.ring_method == RingMethod::gather)
        gathered(u);
      else
        around(u);
    }
  }
  const std::vector<ExchangeBytes>& sent() const { return sent_; }

 private:
  ExchangeBytes& of(int rank) { return sent_[static_cast<size_t>(rank)]; }
  int64_t group() const { return options_.heads / options_.kv_heads; }

  // Query heads are dealt out in order, one more to the first ranks.
  std::vector<int64_t> query_heads(int u) const {
    std::vector<int64_t> mine;
    int64_t next = 0;
    for (int rank = 0; rank <= u; ++rank) {
      mine.clear();
      for (int64_t i = options_.heads / shape_.ulysses + (rank < options_.heads % shape_.ulysses ? 1 : 0);
           i > 0; --i)
        mine.push_back(next++);
    }
    return mine;
  }
  int64_t kv_heads_of(const std::vector<int64_t>& query) const {
    std::set<int64_t> used;
    for (const int64_t head : query) used.insert(head / group());
    return static_cast<int64_t>(used.size());
  }
  // In each head chunk anew.
  int64_t kv_heads_of_chunks(int u) const {
    const std::vector<int64_t> mine = query_heads(u);
    const auto heads = static_cast<int64_t>(mine.size()), chunks = static_cast<int64_t>(options_.head_chunks);
    int64_t used = 0;
    size_t at = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      std::vector<int64_t> chunk_heads;
      for (int64_t i = heads / chunks + (chunk < heads % chunks ? 1 : 0); i > 0; --i)
        chunk_heads.push_back(mine[at++]);
      used += kv_heads_of(chunk_heads);
    }
    return used;
  }

  // Ulysses among the ranks of a ring index.
  void heads_within(int ring_index) {
    const int64_t head_bytes = options_.batch * options_.head_dim * element_;
    for (int owner = 0; owner < shape_.ulysses; ++owner)
      for (const TokenSpan& span : layout_.spans(ring_index * shape_.ulysses + owner))
        for (int64_t token = span.begin; token < span.end; ++token)
          for (int user = 0; user < shape_.ulysses; ++user) {
            if (user == owner) continue;
            const auto query = static_cast<int64_t>(query_heads(user).size());
            const int64_t key_value = kv_heads_of(query_heads(user));
            ExchangeBytes& there = of(ring_index * shape_.ulysses + owner);
            ExchangeBytes& back = of(ring_index * shape_.ulysses + user);
            there.forward += (query + 2 * key_value) * head_bytes;
            back.forward += query * head_bytes;
            there.backward += (query + 2 * key_value) * head_bytes + 2 * query * head_bytes;
            back.backward += (query + 2 * key_value) * head_bytes;
          }
  }

  int64_t block_elements(int ring_index, int u) const {
    return layout_.ring_tokens(ring_index) * options_.batch * 2 * kv_heads_of_chunks(u) * options_.head_dim;
  }

  // Every block visits every ring index; the sums for a block visit the ring indices after its own and come
  // home.
  void around(int u) {
    for (int block = 0; block < shape_.ring; ++block)
      for (int hop = 0; hop + 1 < shape_.ring; ++hop) {
        ExchangeBytes& visited = of((block + hop) % shape_.ring * shape_.ulysses + u);
        visited.forward += block_elements(block, u) * element_;
        visited.backward += block_elements(block, u) * element_;
        of((block + hop + 1) % shape_.ring * shape_.ulysses + u).backward += block_elements(block, u) * 4;
      }
  }

  void gathered(int u) {
    for (int from = 0; from < shape_.ring; ++from)
      for (int to = 0; to < shape_.ring; ++to) {
        if (from == to) continue;
        ExchangeBytes& sender = of(from * shape_.ulysses + u);
        sender.forward += block_elements(from, u) * element_;
        sender.backward += block_elements(from, u) * element_ + block_elements(to, u) * 4;
      }
  }

  // x and y of each token: to all others before each of the two blocks, from all others after it.
  void megatron() {
    const int64_t row = options_.batch * options_.heads * options_.head_dim * element_;
    for (int owner = 0; owner < shape_.ranks(); ++owner)
      for (int64_t token = 0; token < layout_.size(owner); ++token)
        for (int other = 0; other < shape_.ranks(); ++other) {
          if (other == owner) continue;
          of(owner).forward += 2 * row;
          of(other).forward += 2 * row;
          of(owner).backward += 2 * row + 2 * row;  // d(out), and x again
          of(other).backward += 2 * row;
        }
  }

  MethodPartition shape_;
  ExchangeRateOptions options_;
  int64_t element_;
  SampleLayout layout_;
  std::vector<ExchangeBytes> sent_;
};

struct Case {
  MethodPartition shape;
  ExchangeRateOptions options;
};

std::string label_of(const Case& one) {
  return cat(one.shape.description(), ", heads ", one.options.heads, "/", one.options.kv_heads, ", ",
             one.options.tokens, " tokens, ", c10::toString(one.options.dtype), ", ", one.options.head_chunks,
             " chunks");
}

std::vector<MethodPartition> shapes_over(int ranks) {
  std::vector<MethodPartition> shapes{
      partition_over(ExchangeMethod::ulysses, ranks), partition_over(ExchangeMethod::ring, ranks),
      partition_over(ExchangeMethod::gather, ranks), partition_over(ExchangeMethod::megatron, ranks)};
  for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
    if (ranks % ulysses != 0) continue;
    shapes.push_back({ExchangeMethod::hybrid, ulysses, ranks / ulysses});
    shapes.push_back({ExchangeMethod::hybrid, ulysses, ranks / ulysses, RingMethod::gather});
  }
  return shapes;
}

// [case][rank]
std::vector<std::vector<ExchangeRate>> measure(int ranks, const std::vector<Case>& cases) {
  std::vector<std::vector<ExchangeRate>> rates(cases.size(),
                                               std::vector<ExchangeRate>(static_cast<size_t>(ranks)));
  run_ranks_as_threads(ranks, [&](World& world) {
    for (size_t i = 0; i < cases.size(); ++i)
      rates[i][static_cast<size_t>(world.rank())] =
          measure_exchange_rate(world, cases[i].shape, cases[i].options);
  });
  return rates;
}

ExchangeRate measure_one(const MethodPartition& shape, const ExchangeRateOptions& options) {
  return measure(shape.ranks(), {{shape, options}}).front().front();
}

class Ranks : public ::testing::TestWithParam<int> {};

TEST_P(Ranks, send_in_every_method_the_bytes_counted_token_by_token_and_head_by_head) {
  std::vector<Case> cases;
  for (const MethodPartition& shape : shapes_over(GetParam()))
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{7, 1}, {6, 3}, {28, 4}})
      for (const auto& [batch, tokens] : {std::pair<int64_t, int64_t>{2, 37}, {1, 48}, {1, 5}})
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
          for (const int chunks : {1, 2})
            if (tokens == 37 || (dtype == at::kFloat && chunks == 1))
              cases.push_back({shape,
                               {.batch = batch,
                                .tokens = tokens,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = 8,
                                .dtype = dtype,
                                .head_chunks = chunks,
                                .repeats = 1}});
  const auto rates = measure(GetParam(), cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(label_of(cases[i]));
    const CountedBytes counted(cases[i].shape, cases[i].options);
    ExchangeBytes most;
    for (int rank = 0; rank < GetParam(); ++rank) {
      const ExchangeBytes& bytes = counted.sent()[static_cast<size_t>(rank)];
      const ExchangeBytes& counted = rates[i][static_cast<size_t>(rank)].sent;
      EXPECT_EQ(counted.forward, bytes.forward) << "rank " << rank;
      EXPECT_EQ(counted.backward, bytes.backward) << "rank " << rank;
      EXPECT_EQ(formula_bytes(cases[i].shape, cases[i].options, rank), bytes) << "rank " << rank;
      most = {std::max(most.forward, bytes.forward), std::max(most.backward, bytes.backward)};
    }
    EXPECT_EQ(rates[i].front().most_sent, most);
    EXPECT_EQ(rates[i].back().most_formula, most);
  }
}

INSTANTIATE_TEST_SUITE_P(OfAllNumbers, Ranks, ::testing::Values(2, 3, 4));

// Closed forms, in elements of a layer with even shares: 8/4 heads of 16, 96 tokens of 2 samples, 4 ranks.
TEST(ExchangeBytesFormula, is_the_closed_form_where_shares_are_even) {
  constexpr int64_t S = 96, B = 2, H = 8, K = 4, D = 16, P = 4, M = 160;
  ExchangeRateOptions options{
      .batch = B, .tokens = S, .heads = H, .kv_heads = K, .head_dim = D, .hidden = M, .dtype = at::kBFloat16};
  const auto bytes = [&](const MethodPartition& shape) {
    const ExchangeBytes first = formula_bytes(shape, options, 0);
    for (int rank = 1; rank < P; ++rank) EXPECT_EQ(formula_bytes(shape, options, rank), first) << rank;
    EXPECT_EQ(most_formula_bytes(shape, options), first);
    return first;
  };
  const auto is = [](int64_t forward, int64_t backward) { return ExchangeBytes{forward, backward}; };
  EXPECT_EQ(bytes(partition_over(ExchangeMethod::ulysses, P)),
            is(2 * B * (S / P) * (2 * H + 2 * K) * D * (P - 1) / P,
               2 * B * (S / P) * (4 * H + 4 * K) * D * (P - 1) / P));
  const int64_t ring = B * 2 * K * D * S * (P - 1) / P;
  EXPECT_EQ(bytes(partition_over(ExchangeMethod::ring, P)), is(2 * ring, (2 + 4) * ring));
  EXPECT_EQ(bytes(partition_over(ExchangeMethod::gather, P)), is(2 * ring, (2 + 4) * ring));
  constexpr int64_t U = 2, R = 2;
  const int64_t within = B * (S / P) * (2 * H + 2 * K) * D * (U - 1) / U;
  const int64_t around = B * 2 * K * D * (S / U) * (R - 1) / R;
  EXPECT_EQ(bytes({ExchangeMethod::hybrid, U, R}),
            is(2 * within + 2 * around, 2 * 2 * within + (2 + 4) * around));
  EXPECT_EQ(bytes(partition_over(ExchangeMethod::megatron, P)),
            is(2 * B * 4 * M * S * (P - 1) / P, 2 * B * 6 * M * S * (P - 1) / P));
  options.hidden = 0;
  EXPECT_EQ(bytes(partition_over(ExchangeMethod::megatron, P)).forward,
            2 * B * 4 * (H * D) * S * (P - 1) / P);
}

TEST(WeakScaling, a_rank_of_ulysses_sends_the_same_while_others_send_more_and_more) {
  constexpr int64_t s = 24, H = 8, K = 4, D = 8;
  for (const int64_t P : {1, 2, 4}) {
    const ExchangeRateOptions options{
        .tokens = s * P, .heads = H, .kv_heads = K, .head_dim = D, .dtype = at::kFloat, .repeats = 1};
    const auto sent = [&](ExchangeMethod method) {
      return measure_one(partition_over(method, static_cast<int>(P)), options).most_sent;
    };
    const ExchangeBytes ulysses = sent(ExchangeMethod::ulysses);
    EXPECT_EQ(ulysses.forward * P, 4 * s * (2 * H + 2 * K) * D * (P - 1));
    EXPECT_EQ(ulysses.backward * P, 4 * s * (4 * H + 4 * K) * D * (P - 1));
    EXPECT_EQ(sent(ExchangeMethod::ring).forward, 4 * s * 2 * K * D * (P - 1));
    EXPECT_EQ(sent(ExchangeMethod::gather).forward, 4 * s * 2 * K * D * (P - 1));
    EXPECT_EQ(sent(ExchangeMethod::megatron).forward, 4 * s * 4 * H * D * (P - 1));
  }
}

TEST(Exchanges, are_as_many_as_each_method_needs) {
  const auto calls = [](const MethodPartition& shape, int chunks) {
    const ExchangeRate rate = measure_one(
        shape, {.tokens = 24, .heads = 8, .kv_heads = 4, .head_dim = 8, .head_chunks = chunks, .repeats = 1});
    return std::pair(rate.forward_calls, rate.backward_calls);
  };
  using Calls = std::pair<int64_t, int64_t>;
  EXPECT_EQ(calls(partition_over(ExchangeMethod::ulysses, 2), 1), Calls(2, 3));
  EXPECT_EQ(calls(partition_over(ExchangeMethod::ulysses, 2), 2), Calls(4, 6));
  EXPECT_EQ(calls(partition_over(ExchangeMethod::ring, 3), 1), Calls(2, 4));
  EXPECT_EQ(calls(partition_over(ExchangeMethod::gather, 3), 1), Calls(1, 2));
  EXPECT_EQ(calls({ExchangeMethod::hybrid, 2, 2}, 1), Calls(2 + 1, 3 + 2));
  EXPECT_EQ(calls(partition_over(ExchangeMethod::megatron, 2), 1), Calls(4, 6));
}

TEST(ExchangeRate, has_times_that_hold_together) {
  const ExchangeRateOptions options{.tokens = 256, .heads = 4, .kv_heads = 2, .head_dim = 16, .repeats = 4};
  for (const auto& [method, name] : enum_names(ExchangeMethod{})) {
    const ExchangeRate rate = measure_one(partition_over(method, 2, 2), options);
    SCOPED_TRACE(rate.shape.description());
    for (const Spread& spread : {rate.layer_seconds, rate.exchange_seconds}) {
      EXPECT_GT(spread.least, 0);
      EXPECT_LE(spread.least, spread.median);
      EXPECT_LE(spread.median, spread.most);
    }
    EXPECT_GT(rate.exchange_share(), 0);
    EXPECT_LE(rate.exchange_share(), 1);
  }
}

TEST(ExchangeRate, of_one_rank_sends_nothing_and_computes) {
  for (const auto& [method, name] : enum_names(ExchangeMethod{})) {
    const ExchangeRate rate =
        measure_one(partition_over(method, 1, 4), {.tokens = 16, .heads = 2, .kv_heads = 1, .head_dim = 8});
    EXPECT_EQ(rate.calls(), 0);
    EXPECT_EQ(rate.most_sent, ExchangeBytes{});
    EXPECT_EQ(rate.most_formula, ExchangeBytes{});
    EXPECT_GT(rate.layer_seconds.median, 0);
    EXPECT_EQ(rate.exchange_share(), 0);
  }
}

TEST(ExchangeRate, a_count_that_is_not_the_formulas_is_a_bug_and_names_both) {
  check_formula("ring 2", {10, 20}, {10, 20});
  EXPECT_THAT(
      testing::message_of<InternalError>([] {
        check_formula("ring 2", {10, 20}, {10, 21});
      }),
      AllOf(HasSubstr("ring 2"), HasSubstr("sent 10 bytes forward and 20 backward"), HasSubstr("10 and 21")));
  EXPECT_THROW(check_formula("ring 2", {11, 20}, {10, 20}), InternalError);
}

TEST(ExchangeRate, more_ulysses_ranks_than_heads_are_refused) {
  EXPECT_THROW(measure_one(partition_over(ExchangeMethod::ulysses, 3),
                           {.tokens = 12, .heads = 2, .kv_heads = 1, .head_dim = 8}),
               ConfigError);
}

TEST(MethodPartition, a_hybrid_takes_as_many_ulysses_ranks_as_divide_the_ranks) {
  EXPECT_EQ(partition_over(ExchangeMethod::hybrid, 8, 4), (MethodPartition{ExchangeMethod::hybrid, 4, 2}));
  EXPECT_EQ(partition_over(ExchangeMethod::hybrid, 2, 4), (MethodPartition{ExchangeMethod::hybrid, 2, 1}));
  EXPECT_EQ(partition_over(ExchangeMethod::hybrid, 3, 4, RingMethod::gather),
            (MethodPartition{ExchangeMethod::hybrid, 1, 3, RingMethod::gather}));
  EXPECT_EQ(most_hybrid_ulysses(8, 32), 4);
  EXPECT_EQ(most_hybrid_ulysses(8, 3), 2);
  EXPECT_EQ(most_hybrid_ulysses(5, 32), 0);
  EXPECT_EQ(most_hybrid_ulysses(4, 1), 0);
  EXPECT_EQ(most_hybrid_ulysses(1, 8), 0);
}

TEST(ExchangeMethods, are_read_by_the_names_that_they_print) {
  for (const auto& [method, name] : enum_names(ExchangeMethod{}))
    EXPECT_EQ(parse_exchange_method(name), method);
  EXPECT_THAT(testing::message_of<ConfigError>([] { parse_exchange_method("ulyses"); }),
              AllOf(HasSubstr("'ulyses'"), HasSubstr("ulysses, ring, gather, hybrid, megatron")));
}

TEST(Spread, is_median_least_and_most) {
  const Spread odd = spread_of({3, 1, 2}), even = spread_of({4, 1, 2, 3});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.least, 1);
  EXPECT_EQ(even.most, 4);
}

}  // namespace
}  // namespace trireme
