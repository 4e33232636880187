// What is a spike of the loss, told by losses written by hand.
#include "trireme/train/spike_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace trireme::spike_watch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

GuardOptions options_of(int64_t window, int64_t steps) {
  GuardOptions options;
  options.spike_factor = 2;
  options.spike_window = window;
  options.spike_steps = steps;
  return options;
}

// The steps, from 1, after which a spike is told.
std::vector<int64_t> spikes(SpikeWatch& watch, const std::vector<double>& losses) {
  std::vector<int64_t> steps;
  for (size_t i = 0; i < losses.size(); ++i)
    if (watch.add(static_cast<int64_t>(i) + 1, losses[i])) steps.push_back(static_cast<int64_t>(i) + 1);
  return steps;
}

TEST(SpikeWatch, tells_of_enough_steps_in_a_row_above_the_factor_times_the_median) {
  SpikeWatch watch(options_of(4, 2));
  // The median of 1 1 9 1 is 1; that of 1 9 1 2 is 1.5, and 3 is not above twice that.
  EXPECT_THAT(spikes(watch, {1, 1, 9, 1, 2.0}), ElementsAre());
  EXPECT_TRUE(watch.calm());
  EXPECT_FALSE(watch.add(6, 3.1));
  EXPECT_FALSE(watch.calm());
  EXPECT_FALSE(watch.add(7, 1)) << "one step alone";
  EXPECT_TRUE(watch.calm());
  // Of 9 1 2 1: the suspected loss did not enter.
  EXPECT_FALSE(watch.add(8, 3.1));
  const auto spike = watch.add(9, 5);
  ASSERT_TRUE(spike.has_value());
  EXPECT_EQ(spike->first_step, 8);
  EXPECT_EQ(spike->median, 1.5);
  EXPECT_THAT(spike->losses, ElementsAre(3.1, 5));
  EXPECT_EQ(spike->description(2),
            "in steps 8 to 9 the loss was above 2 x 1.5000, the median of the steps before: 3.1000 5.0000");
  EXPECT_TRUE(watch.calm());
}

TEST(SpikeWatch, is_silent_until_its_window_is_full_and_on_a_loss_that_falls) {
  SpikeWatch watch(options_of(4, 1));
  EXPECT_THAT(spikes(watch, {1, 50, 1, 50}), ElementsAre());
  SpikeWatch falling(options_of(3, 1));
  EXPECT_THAT(spikes(falling, {9, 8, 7, 5, 3, 2, 1, 1.5, 1, 0.7}), ElementsAre());
  falling.begin_anew();
  EXPECT_THAT(spikes(falling, {40, 40, 40}), ElementsAre()) << "as at another length";
}

TEST(SpikeWatch, tells_the_same_wherever_it_was_saved_and_restored) {
  std::vector<double> losses;
  for (int i = 0; i < 40; ++i) losses.push_back(i % 13 > 9 ? 5 + 0.1 * i : 1 + 0.01 * i);
  SpikeWatch whole(options_of(5, 3));
  const std::vector<int64_t> expected = spikes(whole, losses);
  ASSERT_THAT(expected, ElementsAre(13, 26, 39));
  for (size_t stop = 1; stop < losses.size(); ++stop) {
    SpikeWatch first(options_of(5, 3)), second(options_of(5, 3));
    std::vector<int64_t> found = spikes(first, {losses.begin(), losses.begin() + static_cast<int64_t>(stop)});
    second.restore(Json::parse(first.state().dump()), "state");
    for (size_t i = stop; i < losses.size(); ++i)
      if (second.add(static_cast<int64_t>(i) + 1, losses[i])) found.push_back(static_cast<int64_t>(i) + 1);
    EXPECT_EQ(found, expected) << "stopped after " << stop;
  }
}

TEST(SpikeWatch, refuses_a_state_that_none_wrote) {
  SpikeWatch watch(options_of(5, 3));
  for (const char* wrong : {R"({"window": 3, "suspected": []})", R"({"window": ["x"], "suspected": []})",
                            R"({"window": [null], "suspected": []})", R"({"window": []})"})
    EXPECT_THAT(message_of<DataError>([&] { watch.restore(Json::parse(wrong), "file: spikes"); }),
                HasSubstr("file: spikes"))
        << wrong;
  watch.restore(Json::parse(R"({"window": [1, 2, 3, 4, 5, 6, 7], "suspected": []})"), "longer");
  EXPECT_THAT(watch.state()["window"], ElementsAre(3, 4, 5, 6, 7)) << "--spike_window fell";
}

}  // namespace
}  // namespace trireme::spike_watch_test
