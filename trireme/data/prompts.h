// The prompts of a token set: stretches of its stream that the model reads and is not trained to predict.
//
//   stream    p p p p a a a p p a a a     p: a question, instructions, a long document to be asked about
//   targets   . . . a a a . . a a a .     the next token, where that is predicted; -100 elsewhere
//
// In the files a document is then several sequences, each with a mode (indexed_dataset.h), which Megatron-LM's
// sets have where they mix text with images.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/token_span.h"

namespace trireme {

// The byte of a sequence in .idx.
enum class SequenceMode : uint8_t { predicted = 0, prompt = 1 };

class Prompts {
 public:
  // Prompts come in the order of the stream; those that touch become one span.
  void add(TokenSpan prompt);
  bool empty() const { return spans_.empty(); }
  // Prompts' tokens in this span of the stream.
  int64_t tokens_in(TokenSpan stream) const;
  // targets [size of `stream`] are the stream's tokens: those of prompts become kIgnoredLabel.
  void ignore(TokenSpan stream, int64_t* targets) const;

  // use(TokenSpan) of each stretch of the span that is a prompt.
  template <typename Use>
  void for_prompts(TokenSpan stream, const Use& use) const {
    auto prompt = std::ranges::upper_bound(spans_, stream.begin, {}, &TokenSpan::end);
    for (; prompt != spans_.end() && prompt->begin < stream.end; ++prompt)
      use(TokenSpan{std::max(prompt->begin, stream.begin), std::min(prompt->end, stream.end)});
  }
  // use(TokenSpan) of each stretch of the span between prompts.
  template <typename Use>
  void for_predicted(TokenSpan stream, const Use& use) const {
    int64_t begin = stream.begin;
    for_prompts(stream, [&](TokenSpan prompt) {
      if (begin < prompt.begin) use(TokenSpan{begin, prompt.begin});
      begin = prompt.end;
    });
    if (begin < stream.end) use(TokenSpan{begin, stream.end});
  }

 private:
  TokenSpans spans_;
};

}  // namespace trireme
