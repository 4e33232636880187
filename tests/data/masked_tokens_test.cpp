// The laws of masking: its rates, that nothing else is touched, and that a choice knows the stream and the
// pass alone.
#include "trireme/data/masked_tokens.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr int64_t kVocabulary = 5000, kMask = 4999, kIgnored = -100;

struct Masked {
  std::vector<int64_t> tokens, targets;
  bool operator==(const Masked&) const = default;
};

// The stream's token at position i.
int64_t token_at(int64_t i) {
  return (i * 7919 + 13) % (kVocabulary - 1);
}

MaskedTokenOptions options(double probability = 0.15, uint64_t seed = 3) {
  return {probability, kMask, kVocabulary, seed};
}

Masked mask(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count) {
  Masked result{std::vector<int64_t>(static_cast<size_t>(count)),
                std::vector<int64_t>(static_cast<size_t>(count))};
  for (int64_t i = 0; i < count; ++i) result.tokens[static_cast<size_t>(i)] = token_at(first + i);
  mask_tokens(options, epoch, first, count, result.tokens.data(), result.targets.data());
  return result;
}

int64_t chosen(const Masked& masked) {
  return std::count_if(masked.targets.begin(), masked.targets.end(),
                       [](int64_t target) { return target != kIgnored; });
}

// Five standard deviations of a count of `trials` at `rate`.
void expect_rate(int64_t count, double trials, double rate) {
  EXPECT_NEAR(static_cast<double>(count), trials * rate, 5 * std::sqrt(trials * rate * (1 - rate)) + 1);
}

TEST(MaskedTokens, are_chosen_hidden_replaced_and_left_at_the_rates_of_the_paper) {
  constexpr int64_t count = 400'000;
  for (const double probability : {0.15, 0.4}) {
    const Masked masked = mask(options(probability), 0, 0, count);
    int64_t hidden = 0, replaced = 0, left = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      if (masked.targets[at] == kIgnored) {
        ASSERT_EQ(masked.tokens[at], token_at(i)) << "what is not chosen stays";
        continue;
      }
      ASSERT_EQ(masked.targets[at], token_at(i)) << "the target is the token that was there";
      if (masked.tokens[at] == kMask)
        ++hidden;
      else if (masked.tokens[at] == token_at(i))
        ++left;
      else
        ++replaced;
    }
    const auto all = static_cast<double>(chosen(masked));
    expect_rate(chosen(masked), static_cast<double>(count), probability);
    expect_rate(hidden, all, 0.8);
    expect_rate(replaced, all, 0.1);
    expect_rate(left, all, 0.1);
  }
}

TEST(MaskedTokens, random_tokens_are_spread_over_the_whole_vocabulary) {
  MaskedTokenOptions few = options(1);
  few.vocab_size = 8;
  few.mask_token_id = 7;
  constexpr int64_t count = 80'000;
  // The stream is all zeros, so that every other id but the mask's was drawn.
  std::vector<int64_t> tokens(count, 0), targets(count);
  mask_tokens(few, 0, 0, count, tokens.data(), targets.data());
  std::vector<int64_t> seen(8, 0);
  for (const int64_t token : tokens) ++seen.at(static_cast<size_t>(token));
  for (size_t id = 1; id < 7; ++id) expect_rate(seen[id], count, 0.1 / 8);
  expect_rate(seen[0], count, 0.1 + 0.1 / 8);
  expect_rate(seen[7], count, 0.8 + 0.1 / 8);
}

TEST(MaskedTokens, every_split_of_the_stream_chooses_the_same) {
  constexpr int64_t first = 1'000'003, count = 999;
  const Masked whole = mask(options(), 2, first, count);
  EXPECT_GT(chosen(whole), 100);
  for (const int64_t piece : {1, 7, 333, 998}) {
    Masked pieces;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const Masked part = mask(options(), 2, first + begin, std::min(piece, count - begin));
      pieces.tokens.insert(pieces.tokens.end(), part.tokens.begin(), part.tokens.end());
      pieces.targets.insert(pieces.targets.end(), part.targets.begin(), part.targets.end());
    }
    EXPECT_EQ(pieces, whole) << "in pieces of " << piece;
  }
}

TEST(MaskedTokens, another_pass_or_seed_chooses_independently) {
  constexpr int64_t count = 100'000;
  const Masked base = mask(options(), 0, 0, count);
  EXPECT_EQ(mask(options(), 0, 0, count), base);
  for (const Masked& other : {mask(options(), 1, 0, count), mask(options(0.15, 4), 0, 0, count),
                              mask(options(), 0, 1'000'000, count)}) {
    int64_t both = 0;
    for (size_t i = 0; i < base.targets.size(); ++i)
      if (base.targets[i] != kIgnored && other.targets[i] != kIgnored) ++both;
    expect_rate(both, static_cast<double>(count), 0.15 * 0.15);
  }
}

TEST(MaskedTokens, a_sample_that_draws_none_has_one_chosen_all_the_same_wherever_it_is_cut) {
  const MaskedTokenOptions rare = options(0.01);
  int64_t without = 0;
  for (int64_t first = 0; first < 4000; first += 20) {
    const int64_t also = choice_of_none(rare, 1, first, 20);
    if (chosen(mask(rare, 1, first, 20)) > 0) {
      EXPECT_EQ(also, -1);
      continue;
    }
    ++without;
    ASSERT_GE(also, first);
    ASSERT_LT(also, first + 20);
    int64_t found = 0;
    for (const int64_t part : {int64_t{0}, int64_t{13}}) {  // two ranks
      std::vector<int64_t> tokens(static_cast<size_t>(part == 0 ? 13 : 7), 5), targets(tokens.size());
      mask_tokens(rare, 1, first + part, static_cast<int64_t>(tokens.size()), tokens.data(), targets.data(),
                  also);
      for (size_t i = 0; i < targets.size(); ++i) {
        if (targets[i] == kIgnored) continue;
        EXPECT_EQ(first + part + static_cast<int64_t>(i), also);
        ++found;
      }
    }
    EXPECT_EQ(found, 1);
  }
  EXPECT_GT(without, 100);
}

}  // namespace
}  // namespace trireme
