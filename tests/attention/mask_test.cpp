// Laws of masks as ranges of key rows, against a scan of every query and key.
#include "trireme/kernels/mask.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "trireme/attention/sequence_attention.h"
#include "trireme/base/error.h"

namespace trireme::mask_test {
namespace {

using Cuts = std::vector<int64_t>;

std::vector<int64_t> tokens_of(const TokenSpans& spans) {
  std::vector<int64_t> tokens;
  for (const TokenSpan& span : spans)
    for (int64_t token = span.begin; token < span.end; ++token) tokens.push_back(token);
  return tokens;
}

// The definition, without sparse blocks.
bool sees(const LayerMask& mask, const Cuts& cuts, int64_t query, int64_t key) {
  if (mask.causality == Causality::causal && key > query) return false;
  if (mask.window > 0 && std::abs(query - key) >= mask.window) return false;
  for (const int64_t cut : cuts)  // a document begins between the two
    if (cut > std::min(query, key) && cut <= std::max(query, key)) return false;
  return true;
}

bool kept(const SparseBlocks& sparse, Causality causality, int64_t query, int64_t key) {
  const int64_t i = query / sparse.block_tokens, j = key / sparse.block_tokens;
  if (causality == Causality::causal && j > i) return false;
  return (i - j < sparse.local_blocks && j - i < sparse.local_blocks) || j < sparse.global_blocks ||
         (sparse.stride_blocks > 0 && j % sparse.stride_blocks == sparse.stride_blocks - 1) ||
         (causality == Causality::full && i < sparse.global_blocks);
}

struct Case {
  LayerMask mask;
  std::vector<Cuts> cu_seqlens;
  int64_t tokens;
  TokenSpans queries, keys;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << "S " << c.tokens << (c.mask.causality == Causality::causal ? " causal" : " full") << " window "
      << c.mask.window << " queries";
  for (const TokenSpan& span : c.queries) out << " [" << span.begin << ", " << span.end << ")";
  out << " keys";
  for (const TokenSpan& span : c.keys) out << " [" << span.begin << ", " << span.end << ")";
  for (const Cuts& cuts : c.cu_seqlens) {
    out << " documents";
    for (const int64_t cut : cuts) out << " " << cut;
  }
  return out;
}

std::shared_ptr<const VisibleKeys> visible(const Case& c) {
  std::vector<Documents> documents;
  documents.reserve(c.cu_seqlens.size());
  for (const Cuts& cuts : c.cu_seqlens) documents.emplace_back(cuts);
  return visible_keys(c.mask, documents, c.tokens, c.queries, c.keys);
}

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  // Some tokens of a sample, in up to three spans; none now and then.
  TokenSpans spans(int64_t tokens) {
    std::set<int64_t> ends;
    for (int64_t i = 0; i < 6; ++i) ends.insert(below(tokens + 1));
    TokenSpans spans;
    for (auto end = ends.begin(); end != ends.end() && std::next(end) != ends.end(); std::advance(end, 2)) {
      spans.push_back({*end, *std::next(end)});
      if (std::next(end, 2) == ends.end()) break;
    }
    return spans;
  }
  Cuts documents(int64_t tokens) {
    std::set<int64_t> cuts{0, tokens};
    for (int64_t count = below(2) == 0 ? tokens : below(6); count > 0; --count) cuts.insert(below(tokens));
    return {cuts.begin(), cuts.end()};
  }

 private:
  std::mt19937_64 random_;
};

std::vector<Case> random_cases() {
  std::vector<Case> cases;
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    Case c;
    c.tokens = 1 + random.below(60);
    c.mask.causality = random.below(2) == 0 ? Causality::causal : Causality::full;
    if (random.below(2) == 0) c.mask.window = 1 + random.below(c.tokens + 5);
    for (int64_t sample = random.below(3); sample > 0; --sample)
      c.cu_seqlens.push_back(random.documents(c.tokens));
    c.queries = random.spans(c.tokens);
    c.keys = random.spans(c.tokens);
    cases.push_back(c);
  }
  for (int ring = 1; ring <= 4; ++ring)  // as ranks hold them
    for (int ring_index = 0; ring_index < ring; ++ring_index)
      for (int other = 0; other < ring; ++other)
        for (const int64_t window : {0, 7}) {
          const SampleLayout layout{37, 1, ring};
          cases.push_back({{Causality::causal, window, {}},
                           {{0, 1, 2, 20, 37}},
                           37,
                           layout.ring_spans(ring_index),
                           layout.ring_spans(other)});
        }
  return cases;
}

TEST(Mask, ranges_are_what_a_scan_of_all_keys_finds) {
  for (const Case& c : random_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const auto keys = visible(c);
    const std::vector<int64_t> query_tokens = tokens_of(c.queries), key_tokens = tokens_of(c.keys);
    ASSERT_EQ(keys->key_rows, key_tokens.size());
    ASSERT_EQ(keys->samples.size(), std::max<size_t>(1, c.cu_seqlens.size()));
    bool anything = false;
    for (size_t sample = 0; sample < keys->samples.size(); ++sample) {
      const Cuts cuts = c.cu_seqlens.empty() ? Cuts{} : c.cu_seqlens[sample];
      const KeyRanges& ranges = keys->samples[sample];
      ASSERT_EQ(ranges.begin.size(), query_tokens.size());
      ASSERT_EQ(ranges.end.size(), query_tokens.size());
      int64_t pairs = 0;
      for (size_t row = 0; row < query_tokens.size(); ++row) {
        EXPECT_GE(ranges.begin[row], 0);
        EXPECT_LE(ranges.begin[row], ranges.end[row]);
        EXPECT_LE(ranges.end[row], keys->key_rows);
        for (int64_t key = 0; key < keys->key_rows; ++key) {
          const bool seen = sees(c.mask, cuts, query_tokens[row], key_tokens[key]);
          EXPECT_EQ(key >= ranges.begin[row] && key < ranges.end[row], seen)
              << "row " << row << " key " << key;
          pairs += seen ? 1 : 0;
        }
      }
      EXPECT_EQ(keys->pairs(static_cast<int64_t>(sample)), pairs);
      EXPECT_TRUE(std::is_sorted(ranges.begin.begin(), ranges.begin.end()));
      EXPECT_TRUE(std::is_sorted(ranges.end.begin(), ranges.end.end()));
      anything = anything || pairs > 0;
    }
    EXPECT_EQ(keys->none(), !anything);
  }
}

std::set<int64_t> rows_in(const std::vector<RowRange>& intervals) {
  std::set<int64_t> rows;
  int64_t last = -1;
  for (const RowRange& interval : intervals) {
    EXPECT_LT(interval.begin, interval.end);
    EXPECT_GT(interval.begin, last);  // those that touch would be one
    last = interval.end;
    for (int64_t row = interval.begin; row < interval.end; ++row) rows.insert(row);
  }
  return rows;
}

TEST(Mask, dense_intervals_reach_from_the_first_key_seen_to_the_last) {
  Random random(2);
  for (const Case& c : random_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    const auto keys = visible(c);
    const std::vector<int64_t> query_tokens = tokens_of(c.queries), key_tokens = tokens_of(c.keys);
    if (query_tokens.empty()) continue;
    const auto queries = static_cast<int64_t>(query_tokens.size());
    const int64_t row = random.below(queries), row_end = row + 1 + random.below(queries - row);
    for (size_t sample = 0; sample < keys->samples.size(); ++sample) {
      const Cuts cuts = c.cu_seqlens.empty() ? Cuts{} : c.cu_seqlens[sample];
      std::set<int64_t> seen;
      for (int64_t r = row; r < row_end; ++r)
        for (int64_t key = 0; key < keys->key_rows; ++key)
          if (sees(c.mask, cuts, query_tokens[r], key_tokens[key])) seen.insert(key);
      std::set<int64_t> expected;
      if (!seen.empty())
        for (int64_t key = *seen.begin(); key <= *seen.rbegin(); ++key) expected.insert(key);
      EXPECT_EQ(rows_in(key_intervals(*keys, static_cast<int64_t>(sample), row, row_end)), expected);
    }
  }
}

std::vector<LayerMask> sparse_masks() {
  std::vector<LayerMask> masks;
  for (const Causality causality : {Causality::causal, Causality::full})
    for (const int64_t window : {0, 150})
      for (const SparseBlocks& sparse :
           {SparseBlocks{64, 1, 0, 0}, {64, 2, 0, 0}, {64, 1, 2, 0}, {64, 1, 0, 3}, {128, 2, 1, 2}})
        masks.push_back({causality, window, sparse});
  return masks;
}

TEST(Mask, sparse_intervals_are_the_kept_blocks_of_what_is_seen) {
  const int64_t tokens = 500;
  const TokenSpans whole{{0, tokens}};
  for (const LayerMask& mask : sparse_masks())
    for (const Cuts& cuts : {Cuts{0, tokens}, Cuts{0, 100, 101, 300, tokens}}) {
      const auto keys = visible({mask, {cuts}, tokens, whole, whole});
      // Tiles of kernels, a single row, and rows of several blocks.
      for (const auto& [row, row_end] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 64}, {64, 128}, {192, 256}, {448, 500}, {130, 131}, {60, 200}, {0, 500}}) {
        std::set<int64_t> seen, expected;
        for (int64_t query = row; query < row_end; ++query)
          for (int64_t key = 0; key < tokens; ++key)
            if (sees(mask, cuts, query, key)) seen.insert(key);
        for (int64_t key = *seen.begin(); key <= *seen.rbegin(); ++key)
          for (int64_t query = row; query < row_end; ++query)
            if (kept(mask.sparse, mask.causality, query, key)) expected.insert(key);
        EXPECT_EQ(rows_in(key_intervals(*keys, 0, row, row_end)), expected)
            << "rows " << row << " to " << row_end;
      }
    }
}

// Twice the tokens are twice the work, where full attention has four times.
TEST(Mask, pairs_computed_are_those_of_the_blocks_kept) {
  const auto computed = [](const LayerMask& mask, int64_t tokens) {
    const TokenSpans whole{{0, tokens}};
    const auto keys = visible({mask, {}, tokens, whole, whole});
    int64_t pairs = 0;
    for (int64_t row = 0; row < tokens; row += 64)
      for (const RowRange& interval : key_intervals(*keys, 0, row, row + 64))
        pairs += 64 * (interval.end - interval.begin);
    return pairs;
  };
  for (const LayerMask& mask : sparse_masks()) {
    if (mask.window > 0 || mask.sparse.block_tokens != 64) continue;
    const int64_t tokens = 64 * 32;
    int64_t blocks = 0;
    for (int64_t i = 0; i < 32; ++i)
      for (int64_t j = 0; j < 32; ++j) blocks += kept(mask.sparse, mask.causality, 64 * i, 64 * j) ? 1 : 0;
    EXPECT_EQ(computed(mask, tokens), blocks * 64 * 64);
  }
  const LayerMask local{Causality::causal, 0, {64, 2, 1, 0}};
  EXPECT_NEAR(static_cast<double>(computed(local, 1 << 14)) / static_cast<double>(computed(local, 1 << 13)),
              2, 0.02);
  EXPECT_LT(computed(local, 1 << 14), computed({}, 1 << 14) / 40);
}

TEST(Mask, causal_keys_are_those_of_samples_of_one_document) {
  for (const int64_t window : {0, 1, 5, 100}) {
    const auto keys = causal_keys(20, window);
    ASSERT_EQ(keys->samples.size(), 1);
    for (int64_t query = 0; query < 20; ++query) {
      EXPECT_EQ(keys->samples[0].begin[query], window == 0 ? 0 : std::max<int64_t>(0, query - window + 1));
      EXPECT_EQ(keys->samples[0].end[query], query + 1);
    }
  }
  EXPECT_EQ(causal_keys(0)->queries(), 0);
  EXPECT_TRUE(causal_keys(0)->none());
}

// Every pair of a sample is computed at exactly one ring rank, and causal work is equal for all.
TEST(Mask, ring_ranks_share_all_pairs_evenly) {
  for (const int ring : {2, 3, 8})
    for (const RingMethod method : {RingMethod::ring, RingMethod::gather}) {
      const SampleLayout layout{4003, 1, ring};
      int64_t total = 0, least = INT64_MAX, most = 0;
      for (int ring_index = 0; ring_index < ring; ++ring_index) {
        const SequenceMask mask = make_sequence_mask({}, {}, layout, ring_index, method);
        ASSERT_EQ(mask.keys.size(), method == RingMethod::ring ? ring : 1);
        int64_t pairs = 0;
        for (const auto& keys : mask.keys) pairs += keys->pairs(0);
        total += pairs;
        least = std::min(least, pairs);
        most = std::max(most, pairs);
      }
      EXPECT_EQ(total, 4003 * 4004 / 2);
      EXPECT_LT(static_cast<double>(most), 1.01 * static_cast<double>(least)) << "R " << ring;
    }
}

TEST(Mask, sparse_blocks_on_a_part_of_a_sample_and_documents_of_another_length_are_bugs_and_say_so) {
  const LayerMask sparse{Causality::causal, 0, {.block_tokens = 64}};
  EXPECT_THROW(visible_keys(sparse, {}, 100, {{0, 50}}, {{0, 100}}), InternalError);
  EXPECT_THROW(visible_keys(sparse, {}, 100, {{0, 100}}, {{50, 100}}), InternalError);
  EXPECT_THROW(make_sequence_mask(sparse, {}, {100, 1, 2}, 0, RingMethod::gather), InternalError);
  EXPECT_THROW(visible_keys({}, {Documents::one(99)}, 100, {{0, 100}}, {{0, 100}}), InternalError);
}

TEST(SparseBlocks, ranges_of_kept_blocks_are_those_that_the_rule_keeps) {
  for (const Causality causality : {Causality::causal, Causality::full})
    for (const int64_t local : {1, 2, 5})
      for (const int64_t global : {0, 1, 4})
        for (const int64_t stride : {0, 1, 3})
          for (const int64_t blocks : {1, 2, 9}) {
            const SparseBlocks sparse{64, local, global, stride};
            int64_t kept = 0, all = 0;
            for (int64_t i = 0; i < blocks; ++i) {
              std::vector<int> times(static_cast<size_t>(blocks), 0);
              int64_t last = 0;
              for (const RowRange& range : sparse.kept_blocks(i, blocks, causality)) {
                EXPECT_LE(last, range.begin);
                last = range.end;
                for (int64_t j = range.begin; j < range.end; ++j) ++times[static_cast<size_t>(j)];
              }
              for (int64_t j = 0; j < blocks; ++j) {
                EXPECT_EQ(times[static_cast<size_t>(j)], sparse.keeps(i, j, causality) ? 1 : 0)
                    << i << " " << j << " of " << blocks << ": " << local << " " << global << " " << stride;
                kept += times[static_cast<size_t>(j)];
                if (causality == Causality::full || j <= i) ++all;
              }
            }
            EXPECT_DOUBLE_EQ(sparse.kept_share(blocks * 64, causality),
                             static_cast<double>(kept) / static_cast<double>(all));
          }
}

}  // namespace
}  // namespace trireme::mask_test
