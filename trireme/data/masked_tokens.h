// Masked-token training data (arXiv 1810.04805, section 3.1): some tokens are chosen to be predicted, and
// most of those are hidden.
//
//   tokens    a b c d e f          chosen: b, d, f
//   tokens    a # c q e f          8 of 10 become the mask token, 1 of 10 any token, 1 of 10 stays
//   targets   . b . d . f          -100 where nothing is chosen
//
// A choice depends on (seed, epoch, place in the token stream) alone: however ranks and batches cut the
// stream, the same tokens are chosen, and each pass over it chooses anew. Special tokens are chosen like
// others.
#pragma once

#include <cstdint>

namespace trireme {

struct MaskedTokenOptions {
  double probability = 0.15;  // of a token to be chosen, above 0 and at most 1
  int64_t mask_token_id = 0;
  int64_t vocab_size = 0;  // random tokens are drawn from [0, vocab_size)
  uint64_t seed = 0;
};

// tokens [count] are those of the stream from place `first` on, in pass `epoch`; they are written over, and
// targets [count] are filled. The token at place `also` is chosen whatever its draw. Throws ConfigError: a
// probability out of range, a mask token outside the vocabulary.
void mask_tokens(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count,
                 int64_t* tokens, int64_t* targets, int64_t also = -1);

// A sample of few tokens may draw none, and would teach nothing: then the place that is chosen all the same; -1
// where places [first, first + count), at least one, have a chosen one.
int64_t choice_of_none(const MaskedTokenOptions& options, int64_t epoch, int64_t first, int64_t count);

}  // namespace trireme
