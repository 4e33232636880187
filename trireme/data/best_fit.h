// Best-fit decreasing: items, the longest first, each into the fullest row that still has room for it; a new
// row where none has. As TRL's "bfd" packs documents (arXiv 2404.10830).
//
//   lengths  4 6 2 5 1, rows of 6    ->    rows {0, 2} {1} {3, 4}
#pragma once

#include <cstdint>
#include <vector>

namespace trireme {

struct BestFit {
  std::vector<int64_t> items;        // row by row; within a row, and by the first of each row, ascending
  std::vector<int64_t> first_items;  // where each row begins in `items`; the number of items follows
};

// Each length is 1 to `room`. Time n log n.
BestFit best_fit(const std::vector<int64_t>& lengths, int64_t room);

}  // namespace trireme
