#include "trireme/attention/delta_heads.h"

namespace trireme {

DeltaShare delta_share(const DeltaHeads& heads, int rank, int ranks) {
  const int64_t group = heads.value / heads.key, of_unit = ranks <= heads.key ? group : 1;
  const int64_t units = heads.value / of_unit;
  const HeadRange value{rank * units / ranks * of_unit, (rank + 1) * units / ranks * of_unit};
  if (value.size() == 0) return {value, {}};
  return {value, {value.begin / group, (value.end + group - 1) / group}};
}

std::vector<int64_t> key_of_value(const DeltaHeads& heads, const DeltaShare& share) {
  const int64_t group = heads.value / heads.key;
  std::vector<int64_t> keys;
  for (int64_t value = share.value.begin; value < share.value.end; ++value)
    keys.push_back(value / group - share.key.begin);
  return keys;
}

std::vector<HeadRange> column_spans(const DeltaHeads& heads, const DeltaShare& share) {
  const int64_t k = heads.key * heads.key_width, b = heads.convolved_columns(), a = b + heads.value;
  const auto span = [](int64_t first, const HeadRange& of, int64_t width) {
    return HeadRange{first + of.begin * width, first + of.end * width};
  };
  return {span(0, share.key, heads.key_width), span(k, share.key, heads.key_width),
          span(2 * k, share.value, heads.value_width), span(b, share.value, 1), span(a, share.value, 1)};
}

int64_t ColumnShares::count(size_t rank) const {
  int64_t count = 0;
  for (const HeadRange& span : of_rank[rank]) count += span.size();
  return count;
}

int64_t ColumnShares::total() const {
  int64_t total = 0;
  for (size_t rank = 0; rank < of_rank.size(); ++rank) total += count(rank);
  return total;
}

ColumnShares delta_columns(const DeltaHeads& heads, int ranks) {
  ColumnShares shares{heads.columns(), {}};
  for (int rank = 0; rank < ranks; ++rank)
    shares.of_rank.push_back(column_spans(heads, delta_share(heads, rank, ranks)));
  return shares;
}

ColumnShares delta_output_columns(const DeltaHeads& heads, int ranks) {
  ColumnShares shares{heads.output_columns(), {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadRange value = delta_share(heads, rank, ranks).value;
    shares.of_rank.push_back({{value.begin * heads.value_width, value.end * heads.value_width}});
  }
  return shares;
}

}  // namespace trireme
