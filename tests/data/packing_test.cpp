// What each packing makes of documents, judged by a scan of their lengths that knows nothing of rows.
#include "trireme/data/packing.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/held_out_split.h"
#include "trireme/data/row_reader.h"

#include "tests/data/numbered_set.h"
#include "tests/support/error_message.h"

namespace trireme::packing_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::NumberedSet;

constexpr int64_t kPad = 1999;
constexpr int64_t kMask = 1998;

LoaderOptions options(Packing packing, int64_t sequence_tokens) {
  LoaderOptions o;
  o.packing.kind = packing;
  o.sequence_tokens = sequence_tokens;
  o.pad_token_id = kPad;
  return o;
}

MaskedTokenOptions masks() {
  MaskedTokenOptions masked;
  masked.probability = 0.3;
  masked.mask_token_id = kMask;
  masked.vocab_size = testing::kNumberedVocabulary;
  masked.seed = 5;
  return masked;
}

std::vector<int64_t> values(const at::Tensor& row) {
  const at::Tensor plain = row.contiguous();
  return {plain.const_data_ptr<int64_t>(), plain.const_data_ptr<int64_t>() + plain.numel()};
}

// Short, empty and long documents, borders that fall on those of windows, many of one token.
class PackingTest : public ::testing::Test {
 protected:
  const NumberedSet set_{{3, 1, 0, 1, 7, 40, 2, 5, 0, 0, 16, 1, 9, 64, 1, 1, 1, 12, 4, 0}};
  // The whole, and a stretch that cuts documents at both ends.
  const std::vector<TokenSpan> ranges_{whole_set(*set_.set), {2, 140}};
  const std::vector<int64_t> lengths_{1, 2, 5, 8, 16, 40, 100};
};

TEST_F(PackingTest, a_token_is_on_average_in_a_document_of_the_mean_over_tokens) {
  for (const int64_t S : lengths_) {
    // Token by token.
    double sum = 0, tokens = 0;
    for (const int64_t document : {3, 1, 0, 1, 7, 40, 2, 5, 0, 0, 16, 1, 9, 64, 1, 1, 1, 12, 4, 0})
      for (int64_t token = 0; token < document; ++token) {
        const int64_t piece = token / S;
        sum += static_cast<double>(std::min(S, document - piece * S));
        ++tokens;
      }
    for (const Packing packing : {Packing::documents, Packing::none})
      EXPECT_EQ(mean_context_tokens(*set_.set, {packing}, S), std::llround(sum / tokens)) << S;
    EXPECT_EQ(mean_context_tokens(*set_.set, {Packing::concat}, S), S);
  }
}

TEST_F(PackingTest, concat_is_windows_of_the_stream_whose_targets_are_the_next_tokens_also_across_documents) {
  for (const TokenSpan& range : ranges_) {
    for (const int64_t S : lengths_) {
      const RowReader reader(set_.set, range, options(Packing::concat, S));
      ASSERT_EQ(reader.rows(), (range.size() - 1) / S);
      for (int64_t row = 0; row < reader.rows(); ++row) {
        const TokenBatch batch = reader.read({{row, 0}});
        EXPECT_TRUE(batch.documents.empty());
        EXPECT_TRUE(at::equal(batch.tokens[0], at::arange(S) + range.begin + row * S));
        EXPECT_TRUE(at::equal(batch.targets, batch.tokens + 1));
      }
    }
  }
}

TEST_F(PackingTest, documents_are_the_same_windows_with_the_documents_that_a_scan_finds) {
  for (const TokenSpan& range : ranges_) {
    for (const int64_t S : lengths_) {
      const RowReader reader(set_.set, range, options(Packing::documents, S));
      ASSERT_EQ(reader.rows(), (range.size() - 1) / S);
      for (int64_t row = 0; row < reader.rows(); ++row) {
        const int64_t begin = range.begin + row * S;
        std::vector<int64_t> expected{0};
        for (int64_t t = 1; t < S; ++t)
          if (!set_.same_document(begin + t - 1, begin + t)) expected.push_back(t);
        expected.push_back(S);
        const TokenBatch batch = reader.read({{row, 0}});
        ASSERT_EQ(batch.documents.size(), 1U);
        EXPECT_EQ(batch.documents[0].cu_seqlens(), expected) << "S " << S << " row " << row;
        EXPECT_TRUE(at::equal(batch.tokens[0], at::arange(S) + begin));
      }
    }
  }
}

TEST_F(PackingTest, a_token_predicts_the_next_of_its_document_also_in_the_next_window_and_nothing_beyond) {
  for (const TokenSpan& range : ranges_) {
    for (const int64_t S : lengths_) {
      const RowReader reader(set_.set, range, options(Packing::documents, S));
      for (int64_t row = 0; row < reader.rows(); ++row) {
        const TokenBatch batch = reader.read({{row, 0}});
        const std::vector<int64_t> tokens = values(batch.tokens[0]), targets = values(batch.targets[0]);
        for (size_t t = 0; t < tokens.size(); ++t)
          EXPECT_EQ(targets[t], set_.same_document(tokens[t], tokens[t] + 1) ? tokens[t] + 1 : kIgnoredLabel)
              << "S " << S << " row " << row << " position " << t;
      }
    }
  }
}

TEST_F(PackingTest, none_gives_every_document_once_in_rows_of_its_own_and_pads_that_nothing_sees) {
  for (const bool masked : {false, true}) {
    for (const TokenSpan& range : ranges_) {
      for (const int64_t S : lengths_) {
        LoaderOptions o = options(Packing::none, S);
        if (masked) o.masked_tokens = masks();
        const RowReader reader(set_.set, range, o);
        const PackedRows rows(set_.set, range, {Packing::none}, S, !masked);
        ASSERT_EQ(reader.rows(), rows.count());
        std::map<int64_t, int> seen;
        for (int64_t row = 0; row < reader.rows(); ++row) {
          const TokenSpan held = rows.row(row).pieces.at(0);
          ASSERT_TRUE(held.size() >= 1 && held.size() <= S);
          EXPECT_TRUE(set_.same_document(held.begin, held.end - 1));
          for (int64_t t = held.begin; t < held.end; ++t) ++seen[t];
          const TokenBatch batch = reader.read({{row, 0}});
          std::vector<int64_t> expected{0};
          for (int64_t t = held.size(); t <= S; ++t) expected.push_back(t);
          EXPECT_EQ(batch.documents.at(0).cu_seqlens(), expected);
          const std::vector<int64_t> tokens = values(batch.tokens[0]), targets = values(batch.targets[0]);
          for (int64_t t = 0; t < S; ++t) {
            const int64_t token = tokens[static_cast<size_t>(t)], target = targets[static_cast<size_t>(t)];
            if (t >= held.size()) {
              EXPECT_EQ(token, kPad);
              EXPECT_EQ(target, kIgnoredLabel);
            } else if (!masked) {
              const int64_t next = held.begin + t + 1;
              EXPECT_EQ(token, held.begin + t);
              EXPECT_EQ(target, next < range.end && set_.same_document(token, next) ? next : kIgnoredLabel);
            }
          }
        }
        int64_t left_out = 0;
        for (int64_t t = range.begin; t < range.end; ++t) {
          if (seen.contains(t)) {
            EXPECT_EQ(seen[t], 1) << "token " << t;
            continue;
          }
          // Alone in its row, and the last of its document: it has no target, and is one of another row
          // already.
          ++left_out;
          int64_t first = t;
          while (first > range.begin && set_.same_document(first - 1, t)) --first;
          EXPECT_EQ((t - first) % S, 0) << "token " << t << " at S " << S;
          EXPECT_TRUE(t + 1 == range.end || !set_.same_document(t, t + 1)) << "token " << t;
        }
        EXPECT_TRUE(!masked || left_out == 0);
        EXPECT_EQ(static_cast<int64_t>(seen.size()) + left_out, range.size());
      }
    }
  }
}

TEST_F(PackingTest, best_fit_holds_the_pieces_of_none_each_once_whole_and_side_by_side) {
  for (const bool masked : {false, true}) {
    for (const TokenSpan& range : ranges_) {
      for (const int64_t S : lengths_) {
        const auto rows_of = [&](Packing packing) {
          return PackedRows(set_.set, range, {packing}, S, !masked);
        };
        const auto by_begin = [](const TokenSpan& a, const TokenSpan& b) { return a.begin < b.begin; };
        std::vector<TokenSpan> alone, packed;
        std::map<int64_t, bool> goes_on;  // of the piece up to this token
        const PackedRows none = rows_of(Packing::none), best_fit = rows_of(Packing::best_fit);
        for (int64_t row = 0; row < none.count(); ++row) {
          alone.push_back(none.row(row).pieces.at(0));
          goes_on[alone.back().end] = none.row(row).goes_on;
        }
        for (int64_t row = 0; row < best_fit.count(); ++row) {
          const PackedRow held = best_fit.row(row);
          std::vector<int64_t> borders{0};
          for (const TokenSpan& piece : held.pieces) borders.push_back(borders.back() + piece.size());
          ASSERT_LE(borders.back(), S);
          for (int64_t t = borders.back() + 1; t <= S; ++t) borders.push_back(t);
          EXPECT_EQ(held.documents->cu_seqlens(), borders);
          EXPECT_TRUE(std::ranges::is_sorted(held.pieces, by_begin));
          EXPECT_EQ(held.goes_on, goes_on.at(held.pieces.back().end));
          packed.insert(packed.end(), held.pieces.begin(), held.pieces.end());
        }
        std::ranges::sort(packed, by_begin);
        EXPECT_EQ(packed, alone) << "S " << S;
        EXPECT_TRUE(S < 8 || best_fit.count() < none.count());
      }
    }
  }
}

TEST_F(PackingTest, a_long_document_is_cut_or_only_its_beginning_is_read_or_nothing) {
  using enum LongDocuments;
  const auto documents_in = [&](TokenSpan range) {
    std::vector<TokenSpan> found;
    for (int64_t t = range.begin; t < range.end; ++t) {
      if (t == range.begin || !set_.same_document(t - 1, t)) found.push_back({t, t});
      found.back().end = t + 1;
    }
    return found;
  };
  for (const LongDocuments rule : {cut, truncate, skip}) {
    for (const TokenSpan& range : ranges_) {
      for (const int64_t S : lengths_) {
        std::vector<int64_t> expected;
        LongDocumentsCount longer;
        double squares = 0;
        std::vector<int64_t> kept_lengths;
        for (const TokenSpan& document : documents_in(range)) {
          ++longer.documents;
          longer.longest_tokens = std::max(longer.longest_tokens, document.size());
          const bool is_long = document.size() > S;
          if (is_long) ++longer.longer, longer.longer_tokens += document.size();
          if (!is_long) kept_lengths.push_back(document.size());
          const int64_t kept = !is_long || rule == cut ? document.size() : rule == truncate ? S : 0;
          for (int64_t t = 0; t < kept; ++t) {
            expected.push_back(document.begin + t);
            squares += static_cast<double>(std::min(S, kept - t / S * S));
          }
        }
        const LongDocumentsCount counted = count_long_documents(*set_.set, range, S);
        EXPECT_EQ(counted.longer, longer.longer);
        EXPECT_EQ(counted.longer_tokens, longer.longer_tokens);
        EXPECT_EQ(counted.documents, longer.documents);
        EXPECT_EQ(counted.longest_tokens, longer.longest_tokens);
        for (const Packing packing : {Packing::none, Packing::best_fit}) {
          const PackedRows rows(set_.set, range, {packing, rule}, S, /*next_token_targets=*/false);
          std::vector<int64_t> read;
          for (int64_t row = 0; row < rows.count(); ++row)
            for (const TokenSpan& piece : rows.row(row).pieces)
              for (int64_t t = piece.begin; t < piece.end; ++t) read.push_back(t);
          std::ranges::sort(read);
          EXPECT_EQ(read, expected) << name_of(rule) << " S " << S;
          if (packing == Packing::none &&
              rule == truncate) {  // a target behind the piece, where the document goes on
            const PackedRows predicted(set_.set, range, {packing, rule}, S, /*next_token_targets=*/true);
            for (int64_t row = 0; row < predicted.count(); ++row) {
              const TokenSpan piece = predicted.row(row).pieces.at(0);
              EXPECT_EQ(predicted.row(row).goes_on,
                        piece.end < range.end && set_.same_document(piece.begin, piece.end));
            }
          }
          if (range.size() < set_.set->tokens()) continue;
          EXPECT_EQ(longest_context_tokens(*set_.set, {packing, rule}, S),
                    rule == skip ? *std::ranges::max_element(kept_lengths) : 64);
          EXPECT_EQ(mean_context_tokens(*set_.set, {packing, rule}, S),
                    std::llround(squares / static_cast<double>(expected.size())));
        }
      }
    }
  }
  const NumberedSet long_ones{{9, 12}};
  EXPECT_THAT(message_of<DataError>([&] {
                PackedRows(long_ones.set, whole_set(*long_ones.set), {Packing::none, skip}, 8, true);
              }),
              HasSubstr("in a row of 8 tokens with --long_documents skip: give longer rows"));
}

TEST_F(PackingTest, a_token_of_best_fit_predicts_the_next_of_its_document) {
  for (const TokenSpan& range : ranges_) {
    for (const int64_t S : lengths_) {
      const RowReader reader(set_.set, range, options(Packing::best_fit, S));
      std::vector<int64_t> predicted, expected;
      for (int64_t row = 0; row < reader.rows(); ++row) {
        const TokenBatch batch = reader.read({{row, 0}});
        const std::vector<int64_t> tokens = values(batch.tokens[0]), targets = values(batch.targets[0]);
        for (size_t t = 0; t < tokens.size(); ++t) {
          if (targets[t] == kIgnoredLabel) continue;
          EXPECT_EQ(targets[t], tokens[t] + 1);
          predicted.push_back(targets[t]);
        }
      }
      for (int64_t t = range.begin + 1; t < range.end; ++t)
        if (set_.same_document(t - 1, t)) expected.push_back(t);
      std::ranges::sort(predicted);
      EXPECT_EQ(predicted, expected) << "S " << S;
    }
  }
}

TEST_F(PackingTest, slices_of_ulysses_and_ring_ranks_join_to_the_row_of_one_rank) {
  constexpr int64_t S = 29;
  for (const bool masked : {false, true}) {
    for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit}) {
      LoaderOptions o = options(packing, S);
      if (masked) o.masked_tokens = masks();
      const RowReader one(set_.set, whole_set(*set_.set), o);
      const std::vector<RowOfEpoch> rows{{2, 1}, {0, 0}, {one.rows() - 1, 3}};
      const TokenBatch expected = one.read(rows);
      for (const auto& [ulysses, ring] : std::vector<std::pair<int, int>>{
               {2, 1}, {3, 1}, {29, 1}, {1, 2}, {2, 2}, {1, 3}, {4, 2}, {2, 5}}) {
        at::Tensor tokens = at::full({3, S}, -1, at::kLong), targets = at::full({3, S}, -1, at::kLong);
        for (int rank = 0; rank < ulysses * ring; ++rank) {
          o.ulysses = ulysses;
          o.ring = ring;
          o.sp_rank = rank;
          const TokenBatch slice = RowReader(set_.set, whole_set(*set_.set), o).read(rows);
          EXPECT_EQ(slice.layout, (SampleLayout{S, ulysses, ring}));
          ASSERT_EQ(slice.documents.size(), expected.documents.size());
          for (size_t i = 0; i < slice.documents.size(); ++i)
            EXPECT_EQ(slice.documents[i].cu_seqlens(), expected.documents[i].cu_seqlens());
          int64_t column = 0;
          for (const TokenSpan& span : slice.layout.spans(rank)) {
            EXPECT_TRUE(tokens.slice(1, span.begin, span.end).eq(-1).all().item<bool>()) << "held twice";
            tokens.slice(1, span.begin, span.end).copy_(slice.tokens.slice(1, column, column + span.size()));
            targets.slice(1, span.begin, span.end)
                .copy_(slice.targets.slice(1, column, column + span.size()));
            column += span.size();
          }
          EXPECT_EQ(column, slice.tokens.size(1));
        }
        EXPECT_TRUE(at::equal(tokens, expected.tokens)) << name_of(packing) << " " << ulysses << "x" << ring;
        EXPECT_TRUE(at::equal(targets, expected.targets))
            << name_of(packing) << " " << ulysses << "x" << ring;
      }
    }
  }
}

TEST_F(PackingTest, masked_tokens_are_their_own_targets_and_the_others_stay_as_they_are) {
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit}) {
    LoaderOptions o = options(packing, 24);
    const PackedRows plain(set_.set, whole_set(*set_.set), {packing}, 24, false);
    o.masked_tokens = masks();
    const RowReader reader(set_.set, whole_set(*set_.set), o);
    ASSERT_EQ(reader.rows(), plain.count());
    int64_t chosen = 0, replaced = 0, held_tokens = 0;
    for (int64_t epoch = 0; epoch < 8; ++epoch) {
      for (int64_t row = 0; row < reader.rows(); ++row) {
        const TokenBatch batch = reader.read({{row, epoch}});
        const std::vector<int64_t> tokens = values(batch.tokens[0]), targets = values(batch.targets[0]);
        std::vector<int64_t> held;
        for (const TokenSpan& piece : plain.row(row).pieces)
          for (int64_t token = piece.begin; token < piece.end; ++token) held.push_back(token);
        held_tokens += std::ssize(held);
        for (int64_t t = 0; t < 24; ++t) {
          const int64_t token = tokens[static_cast<size_t>(t)], target = targets[static_cast<size_t>(t)];
          const int64_t original = t < std::ssize(held) ? held[static_cast<size_t>(t)] : kPad;
          if (target == kIgnoredLabel) {
            EXPECT_EQ(token, original);
          } else {
            EXPECT_LT(t, std::ssize(held)) << "padding was masked";
            EXPECT_EQ(target, original);
            ++chosen;
            if (token == kMask) ++replaced;
          }
        }
      }
    }
    EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(held_tokens), 0.3, 0.06);
    EXPECT_GT(replaced, chosen / 2);
    const TokenBatch first = reader.read({{0, 0}, {1, 0}}), again = reader.read({{0, 0}, {1, 0}});
    EXPECT_TRUE(at::equal(first.tokens, again.tokens));
    EXPECT_FALSE(at::equal(first.targets, reader.read({{0, 1}, {1, 1}}).targets))
        << "every epoch masks alike";
  }
}

// At this rate most rows draw no token.
TEST_F(PackingTest, every_row_of_masked_tokens_has_a_target_and_rarely_more_than_it_draws) {
  for (const Packing packing : {Packing::documents, Packing::best_fit}) {
    LoaderOptions o = options(packing, 24);
    o.masked_tokens = masks();
    o.masked_tokens->probability = 0.01;
    const RowReader reader(set_.set, whole_set(*set_.set), o);
    int64_t targets = 0, rows = 0;
    for (int64_t epoch = 0; epoch < 50; ++epoch) {
      for (int64_t row = 0; row < reader.rows(); ++row, ++rows) {
        const auto of_row = reader.read({{row, epoch}}).targets.ne(kIgnoredLabel).sum().item<int64_t>();
        EXPECT_GE(of_row, 1) << name_of(packing) << " row " << row;
        targets += of_row;
      }
    }
    // Of those that draw one in 24 at a hundredth, one in eight has a second.
    EXPECT_LT(static_cast<double>(targets), 1.06 * static_cast<double>(rows));
  }
}

TEST_F(PackingTest, a_set_shorter_than_one_window_says_what_is_there_and_what_is_needed) {
  const int64_t N = set_.tokens();
  EXPECT_EQ(RowReader(set_.set, whole_set(*set_.set), options(Packing::documents, N - 1)).rows(), 1);
  EXPECT_THAT(message_of<DataError>(
                  [&] { RowReader(set_.set, whole_set(*set_.set), options(Packing::documents, N)); }),
              AllOf(HasSubstr("there are 168 tokens"), HasSubstr("needs 169"), HasSubstr("--packing none")));
  const auto of_range = [&](TokenSpan range) {
    return message_of<DataError>([&] { RowReader(set_.set, range, options(Packing::documents, N)); });
  };
  EXPECT_THAT(of_range({0, 100}), HasSubstr("what is held out leaves training 100 tokens"));
  EXPECT_THAT(of_range({100, N}), HasSubstr("the part held out of training has 68 tokens"));
  EXPECT_EQ(RowReader(set_.set, whole_set(*set_.set), options(Packing::none, N)).rows(), 10);
  const NumberedSet lonely({1, 1, 0, 1});
  EXPECT_THAT(message_of<DataError>(
                  [&] { RowReader(lonely.set, whole_set(*lonely.set), options(Packing::none, 4)); }),
              HasSubstr("there are 4 documents, none of which has two tokens"));
}

TEST_F(PackingTest, a_row_shorter_than_the_ranks_that_share_it_is_refused_with_what_would_work) {
  LoaderOptions o = options(Packing::documents, 7);
  o.ulysses = 4;
  o.ring = 2;
  EXPECT_THAT(message_of<ConfigError>([&] { RowReader(set_.set, whole_set(*set_.set), o); }),
              AllOf(HasSubstr("7 tokens is shorter than the 8 ranks"), HasSubstr("--ulysses 4 x --ring 2"),
                    HasSubstr("at most 7 ranks"), HasSubstr("8 tokens or more")));
}

TEST_F(PackingTest, every_token_and_target_must_be_in_the_models_vocabulary) {
  LoaderOptions o = options(Packing::documents, 167);
  o.vocab_size = 168;
  EXPECT_NO_THROW(RowReader(set_.set, whole_set(*set_.set), o).read({{0, 0}}));
  o.vocab_size = 167;
  EXPECT_THAT(message_of<DataError>([&] {
                RowReader(set_.set, whole_set(*set_.set), o).read({{0, 0}});
              }),
              HasSubstr("has the id 167"));
}

}  // namespace
}  // namespace trireme::packing_test
