// A profile is what its file says, and its tables go through their points.
#include "trireme/plan/hardware_profile.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/planned_step.h"
#include "tests/support/error_message.h"

namespace trireme::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RateTable, goes_through_its_points_and_stays_beyond_them) {
  const RateTable table{{{1024, 64, 10}, {4096, 64, 30}, {1024, 128, 20}, {4096, 128, 60}}};
  EXPECT_DOUBLE_EQ(table.per_second(1024, 64), 10);
  EXPECT_DOUBLE_EQ(table.per_second(4096, 128), 60);
  EXPECT_DOUBLE_EQ(table.per_second(2048, 64), 20);  // half-way in the logarithm
  EXPECT_DOUBLE_EQ(table.per_second(1024, 64 * std::sqrt(2)), 15);
  EXPECT_DOUBLE_EQ(table.per_second(1e9, 1e9), 60);
  EXPECT_DOUBLE_EQ(table.per_second(1, 1), 10);
}

TEST(HardwareProfile, is_what_was_written) {
  HardwareProfile profile = round_profile(true);
  profile.sources = {{"matmul", FigureOrigin::measured, "trireme bench hardware"}};
  const Json json = to_json(profile);
  EXPECT_EQ(to_json(hardware_profile_from_json(json, "file")), json);
}

TEST(HardwareProfile, a_file_that_lacks_a_rate_is_refused_by_name) {
  Json json = to_json(round_profile(true));
  json["rates_16_bit"].erase("norm");
  EXPECT_THAT(message_of<DataError>([&] { hardware_profile_from_json(json, "h.json"); }),
              AllOf(HasSubstr("h.json: rates_16_bit"), HasSubstr("norm")));
  json = to_json(round_profile(true));
  json["rates_32_bit"]["matmul"][0]["per_second"] = 0;
  EXPECT_THROW(hardware_profile_from_json(json, "h.json"), DataError);
}

TEST(HardwareProfile, sizes_of_which_one_is_0_are_refused_for_rates_between_them_follow_the_logarithm) {
  for (const char* coordinate : {"size", "width"}) {
    Json json = to_json(round_profile(true));
    Json& points = json["rates_32_bit"]["matmul"];
    points.push_back(points[0]);
    EXPECT_NO_THROW(hardware_profile_from_json(json, "h.json"));
    points[1][coordinate] = 64;
    EXPECT_THROW(hardware_profile_from_json(json, "h.json"), DataError) << coordinate;
  }
}

}  // namespace
}  // namespace trireme::testing
