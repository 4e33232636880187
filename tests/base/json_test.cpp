#include "trireme/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(Json, an_error_names_the_file_and_the_line) {
  try {
    parse_json("{\n\"a\": 1,\n oops}", "config.json");
    FAIL() << "expected DataError";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("config.json"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("line 3"));
  }
}

TEST(Json, a_number_too_large_for_a_double_is_a_data_error) {
  EXPECT_THROW(parse_json("{\"a\": 1e999}", "config.json"), DataError);
}

TEST(Json, a_missing_file_is_a_data_error) {
  EXPECT_THROW(read_json("/nonexistent/config.json"), DataError);
}

}  // namespace
}  // namespace trireme
