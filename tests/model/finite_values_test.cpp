#include "trireme/model/finite_values.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/split_master.h"
#include "trireme/model/checkpoint_files.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(FiniteValues, the_first_that_is_not_is_found_wherever_it_lies) {
  const int64_t elements = (int64_t{1} << 20) + 77;
  at::Tensor values = at::randn({elements});
  values[5] = std::numeric_limits<float>::max();
  values[6] = std::numeric_limits<float>::denorm_min();
  EXPECT_FALSE(first_not_finite(values));
  for (const int64_t at : {elements - 1, elements / 2, int64_t{4096}, int64_t{0}}) {
    values[at] = at % 2 == 0 ? kNan : -kInfinity;
    EXPECT_EQ(first_not_finite(values), at);
  }
  EXPECT_EQ(first_not_finite(values.to(at::kBFloat16)), 0);
  EXPECT_FALSE(first_not_finite(at::empty({0})));
}

TEST(FiniteValues, are_looked_for_as_they_are_copied_and_converted) {
  const int64_t elements = (int64_t{1} << 20) + 77;
  const at::Tensor truth = at::randn({elements}, at::kDouble);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const at::ScalarType to : {at::kFloat, at::kBFloat16}) {
      at::Tensor values = truth.to(from).clone();
      at::Tensor copy = at::zeros({elements}, to);
      EXPECT_FALSE(copy_and_check(values, copy));
      at::Tensor expected = at::zeros({elements}, to);
      round_masters(values, expected);
      EXPECT_TRUE(copy.equal(expected)) << from << " to " << to;
      for (const int64_t at : {elements - 1, elements / 2, int64_t{4096}, int64_t{0}}) {
        values[at] = at % 2 == 0 ? kNan : -kInfinity;
        EXPECT_EQ(copy_and_check(values, copy), at) << from;
        EXPECT_EQ(first_not_finite(values), at) << from;
      }
    }
  const at::Tensor beyond_fp32 = at::full({3}, 1e300, at::kDouble);
  EXPECT_EQ(copy_and_check(beyond_fp32, at::zeros({3})), 0);
}

TEST(FiniteValues, a_row_is_named_with_its_parameter_and_unit) {
  const UnitSpec unit{"layer.3", {{"a.weight", {4, 8}, 0, 32}, {"a.bias", {8}, 32, 8}}, 48};
  at::Tensor flat = at::zeros({48});
  EXPECT_FALSE(not_finite_row(unit, flat));
  flat[32 + 7] = -kInfinity;
  EXPECT_EQ(not_finite_row(unit, flat), "a.bias (unit layer.3), element 7 holds -infinity");
  flat[3 * 8 + 1] = kNan;
  EXPECT_EQ(not_finite_row(unit, flat), "a.weight (unit layer.3), row 3 holds NaN");
}

// Also where no token of the data would ever use the row.
TEST(FiniteValues, weights_that_are_not_are_refused_as_they_are_read) {
  const testing::TemporaryFolder folder;
  ModelConfig config;
  config.raw = Json::object();
  ModelLayout layout;
  layout.units = {{"embedding", {{"model.embed_tokens.weight", {4, 8}, 0, 32}}, 32}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    write_checkpoint(folder.path(), config, layout,
                     [&](int) {
                       at::Tensor flat = at::ones({32});
                       flat[2 * 8 + 5] = kNan;
                       return flat;
                     },
                     dtype, {});
    at::Tensor flat = at::zeros({32});
    EXPECT_THAT(testing::message_of<DataError>(
                    [&] { CheckpointReader(folder.path()).read_unit(layout.units[0], flat); }),
                AllOf(HasSubstr("model.safetensors"), HasSubstr("'model.embed_tokens.weight'"),
                      HasSubstr("row 2 holds NaN")));
  }
}

}  // namespace
}  // namespace trireme
