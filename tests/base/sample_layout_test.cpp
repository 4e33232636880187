#include "trireme/base/sample_layout.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

const std::vector<int64_t> kTokens{0, 1, 2, 3, 7, 16, 61, 128, 1001};

template <typename Body>
void for_each_layout(const Body& body) {
  for (const int64_t tokens : kTokens)
    for (int ulysses = 1; ulysses <= 5; ++ulysses)
      for (int ring = 1; ring <= 5; ++ring) {
        SCOPED_TRACE(::testing::Message() << "S " << tokens << " U " << ulysses << " R " << ring);
        body(SampleLayout{tokens, ulysses, ring});
      }
}

TEST(SampleLayout, every_token_lies_on_exactly_one_rank) {
  for_each_layout([](const SampleLayout& layout) {
    std::vector<int> ranks_of_token(layout.tokens, 0);
    for (int rank = 0; rank < layout.ranks(); ++rank)
      for (const TokenSpan& span : layout.spans(rank))
        for (int64_t token = span.begin; token < span.end; ++token) ++ranks_of_token.at(token);
    for (const int ranks : ranks_of_token) EXPECT_EQ(ranks, 1);
  });
}

TEST(SampleLayout, spans_ascend_are_never_empty_and_are_two_at_most) {
  for_each_layout([](const SampleLayout& layout) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const TokenSpans spans = layout.spans(rank);
      EXPECT_LE(spans.size(), layout.ring == 1 ? 1 : 2);
      for (size_t i = 0; i < spans.size(); ++i) {
        EXPECT_LT(spans[i].begin, spans[i].end);
        if (i > 0) {
          EXPECT_GT(spans[i].begin, spans[i - 1].end);
        }
      }
      EXPECT_EQ(size_of(spans), layout.size(rank));
    }
  });
}

// So that what Ulysses exchanges inside a ring rank is the ring rank's tokens in ascending order.
TEST(SampleLayout, the_ranks_of_a_ring_rank_hold_its_spans_one_after_another) {
  const auto tokens_of = [](const TokenSpans& spans, std::vector<int64_t>& tokens) {
    for (const TokenSpan& span : spans)
      for (int64_t token = span.begin; token < span.end; ++token) tokens.push_back(token);
  };
  for_each_layout([&](const SampleLayout& layout) {
    for (int ring_index = 0; ring_index < layout.ring; ++ring_index) {
      std::vector<int64_t> of_ring_index, of_ranks;
      tokens_of(layout.ring_spans(ring_index), of_ring_index);
      for (int u = 0; u < layout.ulysses; ++u) {
        const int rank = ring_index * layout.ulysses + u;
        EXPECT_EQ(layout.ring_index(rank), ring_index);
        EXPECT_EQ(layout.ulysses_rank(rank), u);
        EXPECT_EQ(layout.size(rank), layout.within(ring_index).size(u));
        tokens_of(layout.spans(rank), of_ranks);
      }
      EXPECT_EQ(of_ranks, of_ring_index);
      EXPECT_EQ(layout.ring_tokens(ring_index), of_ring_index.size());
    }
  });
}

TEST(SampleLayout, places_differ_by_at_most_one_token_and_so_do_the_ranks_of_one) {
  for_each_layout([](const SampleLayout& layout) {
    int64_t least = layout.tokens, most = 0;
    for (int ring_index = 0; ring_index < layout.ring; ++ring_index) {
      least = std::min(least, layout.ring_tokens(ring_index));
      most = std::max(most, layout.ring_tokens(ring_index));
      const std::vector<int64_t> sizes = layout.within(ring_index).sizes();
      EXPECT_LE(*std::max_element(sizes.begin(), sizes.end()),
                *std::min_element(sizes.begin(), sizes.end()) + 1);
    }
    EXPECT_LE(most, least + 1);
    if (!layout.divisible()) return;
    for (int rank = 0; rank < layout.ranks(); ++rank)
      EXPECT_EQ(layout.size(rank) * layout.ranks(), layout.tokens);
  });
}

TEST(SampleLayout, without_a_ring_shares_are_contiguous) {
  for (const int64_t tokens : kTokens)
    for (int ulysses = 1; ulysses <= 5; ++ulysses) {
      const SampleLayout layout{tokens, ulysses};
      const SequenceLayout contiguous{tokens, ulysses};
      for (int rank = 0; rank < ulysses; ++rank) {
        const int64_t begin = contiguous.begin(rank), end = contiguous.begin(rank + 1);
        EXPECT_EQ(layout.spans(rank), begin < end ? (TokenSpans{{begin, end}}) : TokenSpans{});
      }
    }
}

TEST(SampleLayout, small_ones_are_what_the_header_draws) {
  const SampleLayout two_places{4, 1, 2};
  EXPECT_EQ(two_places.spans(0), (TokenSpans{{0, 1}, {3, 4}}));
  EXPECT_EQ(two_places.spans(1), (TokenSpans{{1, 3}}));  // chunks 1 and 2 touch
  const SampleLayout hybrid{16, 2, 2};                   // ring indices [0, 4) [12, 16) and [4, 12)
  EXPECT_EQ(hybrid.spans(0), (TokenSpans{{0, 4}}));
  EXPECT_EQ(hybrid.spans(1), (TokenSpans{{12, 16}}));
  EXPECT_EQ(hybrid.spans(2), (TokenSpans{{4, 8}}));
  EXPECT_EQ(hybrid.spans(3), (TokenSpans{{8, 12}}));
  const SampleLayout across{12, 3,
                            2};  // ring_index 0 is [0, 3) [9, 12) of two tokens a rank: one holds both ends
  EXPECT_EQ(across.spans(1), (TokenSpans{{2, 3}, {9, 10}}));
}

double causal_pairs(const TokenSpans& spans) {
  double pairs = 0;
  for (const TokenSpan& span : spans)
    for (int64_t token = span.begin; token < span.end; ++token) pairs += static_cast<double>(token + 1);
  return pairs;
}

// Contiguous ring indices would differ by 2R - 1 times.
TEST(SampleLayout, causal_work_of_ring_places_is_equal_but_for_the_tokens_that_do_not_divide) {
  for (const int ring : {2, 3, 5, 8})
    for (const int64_t tokens : {int64_t{240}, int64_t{1001}, int64_t{9999}, int64_t{24000}}) {
      double least = 1e300, most = 0;
      for (int ring_index = 0; ring_index < ring; ++ring_index) {
        const double pairs = causal_pairs(SampleLayout{tokens, 1, ring}.ring_spans(ring_index));
        least = std::min(least, pairs);
        most = std::max(most, pairs);
      }
      const bool even = tokens % (2 * ring) == 0;
      EXPECT_LE(most, least * (even ? 1.0 : 1 + 4.0 * ring / static_cast<double>(tokens)))
          << tokens << " over " << ring;
    }
}

TEST(SampleLayout, lengths_that_divide_are_multiples_of_its_unit) {
  EXPECT_EQ((SampleLayout{0, 4, 1}.unit()), 4);
  EXPECT_EQ((SampleLayout{0, 4, 2}.unit()), 16);
  EXPECT_TRUE((SampleLayout{32, 4, 2}.divisible()));
  EXPECT_FALSE((SampleLayout{24, 4, 2}.divisible()));
  EXPECT_TRUE((SampleLayout{24, 4, 1}.divisible()));
}

TEST(SampleLayout, lengths_that_do_not_divide_are_refused_with_the_nearest_that_do) {
  EXPECT_NO_THROW(check_divisible({32, 4, 2}));
  EXPECT_THAT(
      message_of<ConfigError>([] {
        check_divisible({24, 4, 2});
      }),
      AllOf(HasSubstr("24 is not divisible by 2 x ulysses 4 x ring 2 = 16"), HasSubstr(": 16 and 32")));
  EXPECT_THAT(message_of<ConfigError>([] {
                check_divisible({3, 4, 1});
              }),
              AllOf(HasSubstr("3 is not divisible by ulysses degree 4"), HasSubstr("that are: 4 (or")));
}

TEST(SampleLayout, fewer_tokens_than_ranks_are_refused_with_what_would_work) {
  EXPECT_NO_THROW(check_a_token_for_each_rank({8, 4, 2}));
  EXPECT_THAT(message_of<ConfigError>([] {
                check_a_token_for_each_rank({7, 4, 2});
              }),
              AllOf(HasSubstr("7 tokens is shorter than the 8 ranks that share it (--ulysses 4 x --ring 2)"),
                    HasSubstr("at most 7 ranks"), HasSubstr("8 tokens or more")));
}

}  // namespace
}  // namespace trireme
