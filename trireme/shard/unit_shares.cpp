#include "trireme/shard/unit_shares.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/sequence_layout.h"

namespace trireme {
namespace {

constexpr int64_t kBlock_elements = 16;

SequenceLayout blocks(int64_t elements, int ranks) {
  TRIREME_ASSERT(elements % kBlock_elements == 0, "a unit of ", elements, " elements");
  return {elements / kBlock_elements, ranks};
}

}  // namespace

std::vector<int64_t> share_sizes(int64_t elements, int ranks) {
  std::vector<int64_t> sizes = blocks(elements, ranks).sizes();
  for (int64_t& size : sizes) size *= kBlock_elements;
  return sizes;
}

UnitShare share_of(int64_t elements, int ranks, int rank) {
  const SequenceLayout layout = blocks(elements, ranks);
  return {layout.begin(rank) * kBlock_elements, layout.size(rank) * kBlock_elements};
}

FlatUnit cut_unit(const FlatUnit& unit, const UnitShare& share) {
  FlatUnit cut{unit.name, share.elements, {}, share.begin};
  for (const FlatSpan& span : unit.spans) {
    const int64_t begin = std::max(span.offset, share.begin);
    const int64_t end = std::min(span.offset + span.elements, share.begin + share.elements);
    if (begin < end)
      cut.spans.push_back({begin - share.begin, end - begin, span.decays, span.name, span.shape,
                           span.first + begin - span.offset});
  }
  return cut;
}

}  // namespace trireme
