#include "trireme/data/prompts.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/data/token_batch.h"

namespace trireme {

void Prompts::add(TokenSpan prompt) {
  TRIREME_ASSERT(spans_.empty() || spans_.back().end <= prompt.begin, "a prompt from ", prompt.begin,
                 " on after one up to ", spans_.back().end);
  if (prompt.size() == 0) return;
  if (!spans_.empty() && spans_.back().end == prompt.begin)
    spans_.back().end = prompt.end;
  else
    spans_.push_back(prompt);
}

int64_t Prompts::tokens_in(TokenSpan stream) const {
  int64_t tokens = 0;
  for_prompts(stream, [&](TokenSpan prompt) { tokens += prompt.size(); });
  return tokens;
}

void Prompts::ignore(TokenSpan stream, int64_t* targets) const {
  for_prompts(stream, [&](TokenSpan prompt) {
    std::fill(targets + (prompt.begin - stream.begin), targets + (prompt.end - stream.begin), kIgnoredLabel);
  });
}

}  // namespace trireme
