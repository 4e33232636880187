#include "trireme/data/masked_tokens.h"

#include "trireme/base/error.h"
#include "trireme/base/splitmix64.h"
#include "trireme/data/token_batch.h"

namespace trireme {
namespace {

// In [0, 1).
double uniform(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void check(const MaskedTokenOptions& options) {
  if (!(options.probability > 0 && options.probability <= 1))
    throw ConfigError(cat("--mlm_probability ", options.probability,
                          ": expected a part of the tokens, above 0 and at most 1"));
  if (options.mask_token_id < 0 || options.mask_token_id >= options.vocab_size)
    throw ConfigError(cat("the mask token's id ", options.mask_token_id,
                          " is outside the model's vocabulary of ", options.vocab_size,
                          "; give the id of the tokenizer's mask token with --mask_token_id"));
}

}  // namespace

void mask_tokens(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count,
                 int64_t* tokens, int64_t* targets) {
  check(options);
  const uint64_t key = splitmix64(splitmix64(options.seed) ^ static_cast<uint64_t>(epoch));
  for (int64_t i = 0; i < count; ++i) {
    targets[i] = kIgnoredLabel;
    // The place's own stream: is it chosen, what becomes of it, which random token.
    uint64_t state = splitmix64(key + static_cast<uint64_t>(first + i) * kSplitmix64Step);
    if (uniform(state) >= options.probability) continue;
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
