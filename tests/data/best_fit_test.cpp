// Best-fit decreasing: every item once, no row too full, as few rows as the plain algorithm makes.
#include "trireme/data/best_fit.h"

#include <algorithm>
#include <functional>
#include <random>

#include <gtest/gtest.h>

namespace trireme {
namespace {

// The textbook's: looks at every row for every item.
int64_t rows_of_plain_algorithm(std::vector<int64_t> lengths, int64_t room) {
  std::ranges::sort(lengths, std::greater{});
  std::vector<int64_t> left;
  for (const int64_t length : lengths) {
    auto best = left.end();
    for (auto row = left.begin(); row != left.end(); ++row)
      if (*row >= length && (best == left.end() || *row < *best)) best = row;
    if (best == left.end()) best = left.insert(left.end(), room);
    *best -= length;
  }
  return std::ssize(left);
}

TEST(BestFit, packs_the_example_of_its_page) {
  const BestFit packed = best_fit({4, 6, 2, 5, 1}, 6);
  EXPECT_EQ(packed.items, (std::vector<int64_t>{0, 2, 1, 3, 4}));
  EXPECT_EQ(packed.first_items, (std::vector<int64_t>{0, 2, 3, 5}));
}

// A resumed run takes the rows of the run that it goes on from.
TEST(BestFit, ties_are_packed_as_in_the_first_version) {
  const BestFit packed = best_fit({5, 3, 3, 8, 2, 2, 6, 1, 4, 4, 7, 1, 3}, 8);
  EXPECT_EQ(packed.items, (std::vector<int64_t>{0, 1, 2, 4, 12, 3, 5, 6, 7, 10, 8, 9, 11}));
  EXPECT_EQ(packed.first_items, (std::vector<int64_t>{0, 2, 5, 6, 8, 10, 12, 13}));
}

TEST(BestFit, every_item_is_in_one_row_with_room_for_it_and_rows_are_as_few_as_the_plain_algorithms) {
  std::mt19937 random(7);
  for (const int64_t room : {1, 2, 7, 100, 4096}) {
    for (const int64_t count : {1, 2, 50, 700}) {
      std::vector<int64_t> lengths;
      for (int64_t i = 0; i < count; ++i) {
        const auto most = random() % 3 == 0 ? room : std::max<int64_t>(room / 5, 1);
        lengths.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
      }
      const BestFit packed = best_fit(lengths, room);
      std::vector<int64_t> sorted = packed.items, all(static_cast<size_t>(count));
      std::ranges::sort(sorted);
      std::ranges::generate(all, [next = int64_t{0}]() mutable { return next++; });
      EXPECT_EQ(sorted, all);
      ASSERT_EQ(packed.first_items.front(), 0);
      ASSERT_EQ(packed.first_items.back(), count);
      int64_t first_before = -1;
      for (size_t row = 0; row + 1 < packed.first_items.size(); ++row) {
        const auto begin = packed.items.begin() + packed.first_items[row],
                   end = packed.items.begin() + packed.first_items[row + 1];
        ASSERT_LT(begin, end);
        EXPECT_TRUE(std::is_sorted(begin, end));
        EXPECT_GT(*begin, first_before);
        first_before = *begin;
        int64_t tokens = 0;
        for (auto item = begin; item != end; ++item) tokens += lengths[static_cast<size_t>(*item)];
        EXPECT_LE(tokens, room);
      }
      EXPECT_EQ(std::ssize(packed.first_items) - 1, rows_of_plain_algorithm(lengths, room));
    }
  }
}

}  // namespace
}  // namespace trireme
