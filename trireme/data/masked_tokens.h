// Masked-token training data (arXiv 1810.04805, section 3.1): some tokens are chosen to be predicted, and
// most of the chosen tokens are hidden.
//
//   tokens    a b c d e f          chosen: b, d, f
//   tokens    a # c q e f          8 of 10 become the mask token, 1 of 10 any token, 1 of 10 stays
//   targets   . b . d . f          -100 where nothing is chosen
//
// A choice depends on (seed, epoch, position in the token stream) alone. So any split of the stream over
// ranks and batches chooses the same tokens, and each epoch chooses anew. Special tokens are chosen like
// others.
#pragma once

#include <cstdint>

namespace trireme {

struct MaskedTokenOptions {
  double probability = 0.15;  // of a token to be chosen, above 0 and at most 1
  int64_t mask_token_id = 0;  // in the vocabulary
  int64_t vocab_size = 0;     // random tokens are drawn from [0, vocab_size)
  uint64_t seed = 0;
};

// Masks `tokens` [count], which are the stream's from position `first` on in epoch `epoch`, and fills
// `targets` [count]. The token at position `also` is always chosen.
void mask_tokens(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count,
                 int64_t* tokens, int64_t* targets, int64_t also = -1);

// Returns -1 if one of the positions [first, first + count), at least one, is chosen. Else returns a position
// to choose all the same: a short sample without a chosen token would teach nothing.
int64_t choice_of_none(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count);

}  // namespace trireme
