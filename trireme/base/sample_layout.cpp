#include "trireme/base/sample_layout.h"

#include <algorithm>

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

TokenSpans SampleLayout::ring_spans(int place) const {
  TokenSpans spans;
  if (ring == 1) {
    append(spans, 0, tokens);
    return spans;
  }
  const SequenceLayout chunks{tokens, 2 * ring};
  for (const int chunk : {place, 2 * ring - 1 - place})
    append(spans, chunks.begin(chunk), chunks.begin(chunk + 1));
  return spans;
}

TokenSpans SampleLayout::spans(int rank) const {
  const int place = ring_place(rank);
  const SequenceLayout shares = within(place);
  const int64_t begin = shares.begin(ulysses_place(rank)), end = begin + shares.size(ulysses_place(rank));
  TokenSpans mine;
  int64_t at = 0;  // along ring_spans
  for (const TokenSpan& span : ring_spans(place)) {
    const int64_t from = std::max(begin, at), to = std::min(end, at + span.size());
    if (from < to) append(mine, span.begin + from - at, span.begin + to - at);
    at += span.size();
  }
  return mine;
}

}  // namespace trireme
