#include "trireme/base/sample_layout.h"

#include <algorithm>
#include <string>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// Adds [begin, end), joined to the span before where it touches it.
void append(TokenSpans& spans, int64_t begin, int64_t end) {
  if (begin == end) return;
  if (!spans.empty() && spans.back().end == begin)
    spans.back().end = end;
  else
    spans.push_back({begin, end});
}

}  // namespace

TokenSpans SampleLayout::ring_spans(int ring_index) const {
  TokenSpans spans;
  if (ring == 1) {
    append(spans, 0, tokens);
    return spans;
  }
  const SequenceLayout chunks{tokens, 2 * ring};
  for (const int chunk : {ring_index, 2 * ring - 1 - ring_index})
    append(spans, chunks.begin(chunk), chunks.begin(chunk + 1));
  return spans;
}

TokenSpans SampleLayout::spans(int rank) const {
  const SequenceLayout shares = within(ring_index(rank));
  const int64_t begin = shares.begin(ulysses_rank(rank)), end = begin + shares.size(ulysses_rank(rank));
  TokenSpans spans;
  int64_t offset = 0;  // along ring_spans
  for (const TokenSpan& span : ring_spans(ring_index(rank))) {
    const int64_t from = std::max(begin, offset), to = std::min(end, offset + span.size());
    if (from < to) append(spans, span.begin + from - offset, span.begin + to - offset);
    offset += span.size();
  }
  return spans;
}

void check_a_token_for_each_rank(const SampleLayout& layout) {
  if (layout.tokens >= layout.ranks()) return;
  throw ConfigError(cat("a sequence of ", layout.tokens, " tokens is shorter than the ", layout.ranks(),
                        " ranks that share it (--ulysses ", layout.ulysses, " x --ring ", layout.ring,
                        "): let at most ", layout.tokens, " ranks share a sequence, or take sequences of ",
                        layout.ranks(), " tokens or more"));
}

void check_divisible(const SampleLayout& layout) {
  if (layout.divisible()) return;
  const int64_t unit = layout.unit(), below = layout.tokens / unit * unit;
  throw ConfigError(cat("sequence length ", layout.tokens, " is not divisible by ",
                        layout.ring == 1
                            ? cat("ulysses degree ", layout.ulysses)
                            : cat("2 x ulysses ", layout.ulysses, " x ring ", layout.ring, " = ", unit),
                        "; the nearest lengths that are: ", below > 0 ? cat(below, " and ") : std::string(),
                        below + unit, " (or leave --strict_divisible out: any length works)"));
}

}  // namespace trireme
