#include "trireme/memory/file_space.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(FileSpace, takes_the_first_stretch_that_fits_and_joins_what_is_given_back) {
  FileSpace space;
  EXPECT_EQ(space.take(10), 0);
  EXPECT_EQ(space.take(20), 10);
  EXPECT_EQ(space.take(10), 30);
  EXPECT_EQ(space.take(5), 40);
  space.give_back(0, 10);
  space.give_back(30, 10);
  EXPECT_EQ(space.take(15), 45) << "neither of the two free stretches holds it";
  space.give_back(10, 20);
  EXPECT_EQ(space.take(40), 0) << "the three are one";
  EXPECT_EQ(space.end(), 60);
}

TEST(FileSpace, ends_with_the_last_byte_that_is_taken) {
  FileSpace space;
  space.take(10);
  space.take(10);
  space.take(10);
  space.give_back(10, 10);
  EXPECT_EQ(space.end(), 30);
  space.give_back(20, 10);
  EXPECT_EQ(space.end(), 10);
  space.give_back(0, 10);
  EXPECT_EQ(space.end(), 0);
}

TEST(FileSpace, giving_back_what_is_not_taken_is_a_bug) {
  FileSpace space;
  space.take(30);
  space.give_back(10, 10);
  EXPECT_THROW(space.give_back(10, 10), InternalError);
  EXPECT_THROW(space.give_back(15, 10), InternalError);
  EXPECT_THROW(space.give_back(5, 10), InternalError);
  EXPECT_THROW(space.give_back(25, 10), InternalError);
}

TEST(FileSpace, never_hands_a_byte_out_twice) {
  std::mt19937_64 random(7);
  FileSpace space;
  std::map<int64_t, int64_t> taken;
  for (int i = 0; i < 5000; ++i) {
    if (taken.empty() || random() % 2 == 0) {
      const auto bytes = static_cast<int64_t>(random() % 100 + 1);
      const int64_t offset = space.take(bytes);
      const auto [region, fresh] = taken.emplace(offset, bytes);
      ASSERT_TRUE(fresh);
      if (region != taken.begin()) {
        ASSERT_LE(std::prev(region)->first + std::prev(region)->second, offset);
      }
      if (std::next(region) != taken.end()) {
        ASSERT_LE(offset + bytes, std::next(region)->first);
      }
    } else {
      const auto region = std::next(taken.begin(), static_cast<int64_t>(random() % taken.size()));
      space.give_back(region->first, region->second);
      taken.erase(region);
    }
    ASSERT_EQ(space.end(), taken.empty() ? 0 : taken.rbegin()->first + taken.rbegin()->second);
  }
}

}  // namespace
}  // namespace trireme
