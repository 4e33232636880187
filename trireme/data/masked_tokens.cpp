#include "trireme/data/masked_tokens.h"

#include "trireme/base/error.h"
#include "trireme/base/splitmix64.h"
#include "trireme/data/token_batch.h"

namespace trireme {
namespace {

// A number in [0, 1).
double uniform(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

uint64_t key_of(const MaskedTokenOptions& options, int64_t epoch) {
  return splitmix64(splitmix64(options.seed) ^ static_cast<uint64_t>(epoch));
}
uint64_t draw_at(uint64_t key, int64_t position) {
  return splitmix64(key + static_cast<uint64_t>(position) * kSplitmix64Step);
}

}  // namespace

int64_t choice_of_none(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count) {
  TRIREME_ASSERT(count > 0, "no position to choose from");
  const uint64_t key = key_of(options, epoch);
  for (int64_t position = first; position < first + count; ++position)
    if (uniform(draw_at(key, position)) < options.probability) return -1;
  return first + static_cast<int64_t>(splitmix64(draw_at(key, first)) % static_cast<uint64_t>(count));
}

void mask_tokens(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count,
                 int64_t* tokens, int64_t* targets, int64_t also) {
  const uint64_t key = key_of(options, epoch);
  for (int64_t i = 0; i < count; ++i) {
    targets[i] = kIgnoredLabel;
    // Each position has its random stream: is the token chosen, what becomes of it, which random token.
    uint64_t state = draw_at(key, first + i);
    if (uniform(state) >= options.probability && first + i != also) continue;
    targets[i] = tokens[i];
    state = splitmix64(state);
    const double fate = uniform(state);
    if (fate < 0.8)
      tokens[i] = options.mask_token_id;
    else if (fate < 0.9)
      tokens[i] = static_cast<int64_t>(splitmix64(state) % static_cast<uint64_t>(options.vocab_size));
  }
}

}  // namespace trireme
