#include "trireme/data/held_out_split.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"

namespace trireme {

TokenSpan whole_set(const IndexedDataset& dataset) {
  return {0, dataset.tokens()};
}

HeldOutSplit split_held_out(const IndexedDataset& dataset, double fraction) {
  const int64_t all = dataset.tokens();
  const auto wanted = std::clamp<int64_t>(all - std::llround(static_cast<double>(all) * fraction), 1,
                                          std::max<int64_t>(1, all - 1));
  const int64_t document = dataset.document_of(wanted);
  const int64_t before = dataset.document_begin(document), after = dataset.document_begin(document + 1);
  const int64_t cut = before > 0 && (after == all || wanted - before <= after - wanted) ? before : after;
  const int64_t asked = all - wanted, held_out = all - cut;
  const bool near = asked <= 2 * held_out && held_out <= 2 * asked;
  // A prompt and its answer stay together wherever there is another document.
  const bool whole_documents = !dataset.prompts().empty() && cut > 0 && cut < all;
  const int64_t begin = near || whole_documents ? cut : wanted;
  return {{0, begin}, {begin, all}};
}

std::string held_out_note(const IndexedDataset& dataset, TokenSpan held_out) {
  const int64_t first = dataset.document_of(held_out.begin), count = dataset.documents() - first;
  const bool cut = dataset.document_begin(first) < held_out.begin;
  return cat("held out: the last ", format_count(held_out.size()), " tokens of the set, ",
             format_count(count), count == 1 ? " document" : " documents", " of ",
             format_count(dataset.documents()), ", from ", cut ? "within " : "", "document ",
             format_count(first),
             " on (counted from 0), in the set's own order (docs/data.md tells how to shuffle it)");
}

}  // namespace trireme
