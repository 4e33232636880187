// A needle in a haystack: one fact put into a long text that has nothing to do with it, and a question for it
// at the end. A model that uses its whole context answers at every length and depth.
//
//   tokens   begin | haystack, depth x h | needle | haystack, the rest | question | answer      L in all
//
// Needle: "The secret number of Lisbon is 4817302."  Answer: " 4817302". Distractors are such needles of other
// cities, at random depths (RULER's multi-key task, arXiv 2404.06654). The answer alone is predicted
// (data/prompts.h), and right if greedy generation would write it (answers.h).
#pragma once

#include <cstdint>

#include "trireme/data/encoded_document.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/tokenizer/tokenizer.h"

namespace trireme {

struct NeedleOptions {
  int64_t tokens = 0;       // L
  double depth = 0;         // of the haystack, what stands before the needle: 0 to 1
  int64_t distractors = 0;  // at most kMostDistractors
  uint64_t seed = 0;        // chooses cities, numbers, the distractors' depths, where the haystack is cut
};

constexpr int64_t kMostDistractors = 31;  // with one city left for the needle

// `haystack` is a set of the tokenizer's tokens. Its tokens that begin and end documents are left out; a
// shorter one is repeated. Throws ConfigError where L leaves no haystack, DataError for a haystack without
// other tokens.
EncodedDocument make_needle_sample(const Tokenizer& tokenizer, const IndexedDataset& haystack,
                                   const NeedleOptions& options);

}  // namespace trireme
