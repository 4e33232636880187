#include "trireme/data/best_fit.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// The row of each item.
std::vector<int64_t> rows_of(const std::vector<int64_t>& lengths, int64_t room) {
  std::vector<int64_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  const auto length = [&](int64_t item) { return lengths[static_cast<size_t>(item)]; };
  std::ranges::stable_sort(longest_first, std::greater{}, length);
  std::vector<int64_t> row_of(lengths.size());
  std::map<int64_t, std::vector<int64_t>> rows_by_room;
  int64_t rows = 0;
  for (const int64_t item : longest_first) {
    TRIREME_ASSERT(length(item) >= 1 && length(item) <= room, "an item of ", length(item), " in rows of ",
                   room);
    int64_t row = 0, left = room;
    if (const auto fit = rows_by_room.lower_bound(length(item)); fit != rows_by_room.end()) {
      row = fit->second.back();
      left = fit->first;
      fit->second.pop_back();
      if (fit->second.empty()) rows_by_room.erase(fit);
    } else {
      row = rows++;
    }
    row_of[static_cast<size_t>(item)] = row;
    left -= length(item);
    if (left > 0) rows_by_room[left].push_back(row);
  }
  return row_of;
}

}  // namespace

BestFit best_fit(const std::vector<int64_t>& lengths, int64_t room) {
  const std::vector<int64_t> row_of = rows_of(lengths, room);
  // Rows are numbered anew by their first item.
  std::vector<int64_t> number_of(lengths.size(), -1), first;
  for (const int64_t row : row_of) {
    int64_t& number = number_of[static_cast<size_t>(row)];
    if (number < 0) {
      number = std::ssize(first);
      first.push_back(0);
    }
    ++first[static_cast<size_t>(number)];
  }
  std::exclusive_scan(first.begin(), first.end(), first.begin(), int64_t{0});
  BestFit packed{std::vector<int64_t>(lengths.size()), first};
  packed.first_items.push_back(std::ssize(lengths));
  for (size_t item = 0; item < lengths.size(); ++item) {
    int64_t& next = first[static_cast<size_t>(number_of[static_cast<size_t>(row_of[item])])];
    packed.items[static_cast<size_t>(next++)] = static_cast<int64_t>(item);
  }
  return packed;
}

}  // namespace trireme
