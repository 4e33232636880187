// Who computes which heads of a Gated DeltaNet (arXiv 2412.06464): V value heads of Dv, each V / K neighbours
// of which read one of K key heads of Dk. Arithmetic only: the planner uses it too.
//
//   columns of a token    q [K Dk] | k [K Dk] | v [V Dv] | b [V] | a [V]      q, k and v are convolved over time
//   output of a token     o [V Dv]
//
// Up to K ranks each has whole groups of a key head; beyond, value heads are shared out, and a key head goes
// to every rank that reads it. Some of more than V ranks have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/attention/head_shares.h"

namespace trireme {

struct DeltaHeads {
  int64_t key = 0;          // K
  int64_t value = 0;        // V
  int64_t key_width = 0;    // Dk
  int64_t value_width = 0;  // Dv

  int64_t convolved_columns() const { return 2 * key * key_width + value * value_width; }
  int64_t columns() const { return convolved_columns() + 2 * value; }
  int64_t output_columns() const { return value * value_width; }
  bool operator==(const DeltaHeads&) const = default;
};

// Of one rank.
struct DeltaShare {
  HeadRange value, key;
  int64_t convolved_columns(const DeltaHeads& heads) const {
    return 2 * key.size() * heads.key_width + value.size() * heads.value_width;
  }
  int64_t columns(const DeltaHeads& heads) const { return convolved_columns(heads) + 2 * value.size(); }
};
DeltaShare delta_share(const DeltaHeads& heads, int rank, int ranks);
// For each of the rank's value heads the key head that it reads, counted from the rank's first.
std::vector<int64_t> key_of_value(const DeltaHeads& heads, const DeltaShare& share);
// Ranges of the columns: q, k, v, b and a of the rank.
std::vector<HeadRange> column_spans(const DeltaHeads& heads, const DeltaShare& share);

// For each rank the ranges of columns that it takes, one behind the other; those of several ranks may overlap.
struct ColumnShares {
  int64_t columns = 0;
  std::vector<std::vector<HeadRange>> of_rank;

  int64_t count(std::size_t rank) const;  // of a rank
  int64_t total() const;                  // over all ranks: more than `columns` where some go to several
};
ColumnShares delta_columns(const DeltaHeads& heads, int ranks);
// Of the output: each rank's value heads.
ColumnShares delta_output_columns(const DeltaHeads& heads, int ranks);

}  // namespace trireme
