#include "trireme/measure/synthetic_tokens.h"

#include <algorithm>

#include "trireme/base/splitmix64.h"

namespace trireme {

std::vector<int64_t> synthetic_tokens(uint64_t seed, uint64_t sample, int64_t length, int64_t vocabulary) {
  const uint64_t base = (seed << 48) + (sample << 32);
  const auto values = static_cast<uint64_t>(std::min<int64_t>(vocabulary, 1024));
  std::vector<int64_t> tokens(static_cast<size_t>(length));
  uint64_t x = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const uint64_t h = splitmix64(base + t);
    x = t == 0 || h % 4 == 0 ? (h >> 8) % values : (5 * x + 17) % values;
    tokens[t] = static_cast<int64_t>(x);
  }
  return tokens;
}

TokenBatch synthetic_batch(uint64_t seed, uint64_t first_sample, int64_t batch, int64_t vocabulary,
                           const SampleLayout& layout, int rank) {
  TokenBatch result;
  result.layout = layout;
  const TokenSpans spans = layout.spans(rank);
  const int64_t size = size_of(spans);
  result.tokens = at::empty({batch, size}, at::kLong);
  result.targets = at::empty({batch, size}, at::kLong);
  auto* tokens = result.tokens.mutable_data_ptr<int64_t>();
  auto* targets = result.targets.mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<int64_t> sample =
        synthetic_tokens(seed, first_sample + static_cast<uint64_t>(b), layout.tokens, vocabulary);
    sample.push_back(kIgnoredLabel);
    for (const TokenSpan& span : spans) {
      tokens = std::copy(sample.begin() + span.begin, sample.begin() + span.end, tokens);
      targets = std::copy(sample.begin() + span.begin + 1, sample.begin() + span.end + 1, targets);
    }
  }
  return result;
}

}  // namespace trireme
