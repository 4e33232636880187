#include "trireme/eval/needles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/base/splitmix64.h"

namespace trireme {
namespace {

constexpr std::array<const char*, kMostDistractors + 1> kCities = {
    "Lisbon", "Cairo",  "Oslo",    "Lima",    "Quito",  "Delhi",  "Seoul",  "Tunis",
    "Sofia",  "Hanoi",  "Accra",   "Dublin",  "Ottawa", "Havana", "Riga",   "Rome",
    "Berlin", "Athens", "Nairobi", "Madrid",  "Warsaw", "Prague", "Vienna", "Tokyo",
    "Bogota", "Dakar",  "Manila",  "Jakarta", "Tehran", "Minsk",  "Zagreb", "Kigali"};

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(splitmix64(seed)) {}
  uint64_t below(uint64_t bound) {
    state_ = splitmix64(state_ + kSplitmix64Step);
    return state_ % bound;
  }

 private:
  uint64_t state_;
};

std::string number_of(Draws& draws) {
  return std::to_string(1'000'000 + draws.below(9'000'000));
}

std::string needle_text(const std::string& city, const std::string& number) {
  return cat("\nThe secret number of ", city, " is ", number, ".\n");
}

std::string question_text(const std::string& city) {
  return cat("\n\nQuestion: What is the secret number of ", city, "?\nAnswer: The secret number of ", city,
             " is");
}

// Without what the tokenizer puts before and behind each text, which ends nothing here.
EncodedDocument encode_piece(const Tokenizer& tokenizer, const std::string& text, int64_t prompt_bytes) {
  PieceCache cache;
  EncodedDocument encoded = encode_document(tokenizer, text, prompt_bytes, cache);
  const std::vector<int32_t>& begin = tokenizer.begin_of_text();
  if (encoded.ids.size() >= begin.size() && std::equal(begin.begin(), begin.end(), encoded.ids.begin()))
    encoded.drop_first(std::ssize(begin));
  encoded.drop_last(std::ssize(tokenizer.behind_text()));
  return encoded;
}

// `count` tokens of the set from `first` on, round its end, without those that begin and end documents.
std::vector<int32_t> straw(const Tokenizer& tokenizer, const IndexedDataset& haystack, int64_t first,
                           int64_t count) {
  const int32_t end_of_text = tokenizer.end_of_text_id();
  const std::vector<int32_t>& begin = tokenizer.begin_of_text();
  const auto is_left_out = [&](int64_t id) { return id == end_of_text || contains(begin, id); };
  constexpr int64_t kAtOnce = 65536;
  std::vector<int32_t> tokens;
  std::vector<int64_t> block;
  int64_t offset = first, looked_at = 0;
  while (std::ssize(tokens) < count) {
    block.resize(static_cast<size_t>(std::min(kAtOnce, haystack.tokens() - offset)));
    haystack.read(offset, std::ssize(block), block.data(), tokenizer.vocab_size());
    for (const int64_t id : block)
      if (!is_left_out(id) && std::ssize(tokens) < count) tokens.push_back(static_cast<int32_t>(id));
    looked_at += std::ssize(block);
    offset = (offset + std::ssize(block)) % haystack.tokens();
    if (tokens.empty() && looked_at >= haystack.tokens())
      throw DataError(cat(haystack.path().string(), ": a haystack of nothing but ends of texts"));
  }
  return tokens;
}

struct Insertion {
  int64_t offset = 0;  // in the haystack
  std::vector<int32_t> ids;
};

}  // namespace

EncodedDocument make_needle_sample(const Tokenizer& tokenizer, const IndexedDataset& haystack,
                                   const NeedleOptions& options) {
  TRIREME_ASSERT(options.distractors >= 0 && options.distractors <= kMostDistractors, options.distractors,
                 " distractors");
  Draws draws(options.seed);
  std::array<const char*, kCities.size()> cities = kCities;
  for (size_t i = cities.size(); i > 1; --i) std::swap(cities[i - 1], cities[draws.below(i)]);
  const std::string number = number_of(draws), question = question_text(cities[0]);
  std::vector<Insertion> needles;
  for (int64_t i = 0; i <= options.distractors; ++i) {
    const std::string text = needle_text(cities[static_cast<size_t>(i)], i == 0 ? number : number_of(draws));
    needles.push_back({0, encode_piece(tokenizer, text, 0).ids});
  }
  const EncodedDocument asked = encode_piece(tokenizer, cat(question, " ", number), std::ssize(question));
  const std::vector<int32_t>& begin = tokenizer.begin_of_text();
  int64_t straw_tokens = options.tokens - std::ssize(begin) - std::ssize(asked.ids);
  for (const Insertion& needle : needles) straw_tokens -= std::ssize(needle.ids);
  if (straw_tokens < 1)
    throw ConfigError(cat("a needle, its question and ", options.distractors, " distractors take ",
                          format_count(options.tokens - straw_tokens), " tokens: a sample of ",
                          format_count(options.tokens), " has no room for a haystack; give a longer one"));
  const auto first = static_cast<int64_t>(draws.below(static_cast<uint64_t>(haystack.tokens())));
  const std::vector<int32_t> hay = straw(tokenizer, haystack, first, straw_tokens);
  for (size_t i = 0; i < needles.size(); ++i)
    needles[i].offset = i == 0 ? std::llround(options.depth * static_cast<double>(straw_tokens))
                               : static_cast<int64_t>(draws.below(static_cast<uint64_t>(straw_tokens) + 1));
  std::ranges::stable_sort(needles, {}, &Insertion::offset);

  EncodedDocument sample{begin};
  int64_t taken = 0;
  const auto take_up_to = [&](int64_t offset) {
    sample.ids.insert(sample.ids.end(), hay.begin() + taken, hay.begin() + offset);
    taken = offset;
  };
  for (const Insertion& needle : needles) {
    take_up_to(needle.offset);
    sample.ids.insert(sample.ids.end(), needle.ids.begin(), needle.ids.end());
  }
  take_up_to(straw_tokens);
  sample.prompt_tokens = std::ssize(sample.ids) + asked.prompt_tokens;
  sample.ids.insert(sample.ids.end(), asked.ids.begin(), asked.ids.end());
  return sample;
}

}  // namespace trireme
