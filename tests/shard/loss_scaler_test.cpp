// Laws of the loss scale.
#include "trireme/shard/loss_scaler.h"

#include <limits>

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(LossScaler, doubles_after_growth_steps_clean_steps_in_a_row) {
  LossScaler scaler({.initial = 8, .growth_steps = 3});
  for (int step = 0; step < 2; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
  for (int step = 0; step < 2; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, halves_at_each_overflow_and_counts_clean_steps_anew) {
  LossScaler scaler({.initial = 64, .growth_steps = 3});
  scaler.update(false);
  scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 32);
  EXPECT_EQ(scaler.clean_steps(), 0);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, never_falls_below_one_and_an_overflow_there_is_an_error) {
  LossScaler scaler({.initial = 3, .growth_steps = 10});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1.5);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_THROW(scaler.update(true), DataError);
}

TEST(LossScaler, stays_a_number_of_fp32_however_long_it_grows) {
  LossScaler scaler({.initial = 0x1p120, .growth_steps = 1});
  for (int step = 0; step < 50; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

// A gradient that overflows above some scale: the scale settles just below it and stays there.
TEST(LossScaler, settles_below_the_scale_that_overflows) {
  LossScaler scaler({.initial = 0x1p24, .growth_steps = 5});
  int skipped = 0;
  for (int step = 0; step < 200; ++step) {
    const bool overflow = scaler.scale() > 1000;
    skipped += overflow ? 1 : 0;
    scaler.update(overflow);
    if (step > 20) {
      EXPECT_TRUE(scaler.scale() == 512 || scaler.scale() == 1024);
    }
  }
  EXPECT_LT(skipped, 60);
}

TEST(LossScaler, two_numbers_are_its_whole_state) {
  const LossScalerSettings settings{.initial = 1024, .growth_steps = 4};
  LossScaler first(settings);
  for (const bool overflow : {false, true, false, false, false}) first.update(overflow);
  LossScaler second(settings);
  second.restore(first.scale(), first.clean_steps());
  for (const bool overflow : {false, false, false, true, false, false, false, false, false}) {
    first.update(overflow);
    second.update(overflow);
    EXPECT_EQ(second.scale(), first.scale());
    EXPECT_EQ(second.clean_steps(), first.clean_steps());
  }
}

TEST(LossScaler, settings_and_saved_numbers_that_mean_nothing_are_refused) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, 0.5, -2.0, infinity, std::nan(""), 0x1p128}) {
    EXPECT_THROW(LossScaler({.initial = scale}), InternalError) << scale;
    LossScaler scaler({});
    EXPECT_THROW(scaler.restore(scale, 0), DataError) << scale;
    EXPECT_EQ(scaler.scale(), 65536);
  }
  EXPECT_THROW(LossScaler({.growth_steps = 0}), InternalError);
  LossScaler scaler({});
  EXPECT_THROW(scaler.restore(2, -1), DataError);
}

}  // namespace
}  // namespace trireme
