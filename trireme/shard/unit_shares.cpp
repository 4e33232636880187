#include "trireme/shard/unit_shares.h"

#include <algorithm>

#include "trireme/base/round_up.h"

namespace trireme {

int64_t padded_elements(int64_t elements, int ranks) {
  constexpr int64_t kBlock_elements = 16;
  return round_up(elements, kBlock_elements * ranks);
}

UnitShare share_of(int64_t elements, int ranks, int rank) {
  const int64_t share = padded_elements(elements, ranks) / ranks;
  return {share * rank, share};
}

std::vector<int64_t> equal_shares(int64_t share_elements, int ranks) {
  return std::vector<int64_t>(static_cast<size_t>(ranks), share_elements);
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
