#include "trireme/train/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"

#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"

namespace trireme {
namespace {

ScheduleKind kind_of(const std::string& text) {
  for (const auto& [kind, name] : enum_names(ScheduleKind{}))
    if (text == name) return kind;
  throw std::logic_error("no schedule is named " + text);
}

// fixtures/schedules.json holds what transformers.get_scheduler gives (make_schedule_fixture.py).
TEST(Schedule, learning_rates_are_those_of_transformers_at_every_step) {
  const Json cases = read_json(testing::source_folder() / "tests/train/fixtures/schedules.json");
  ASSERT_GE(cases.size(), enum_names(ScheduleKind{}).size());
  for (const Json& one : cases) {
    const Schedule schedule{kind_of(one["kind"]), parse_schedule_kwargs(one["kwargs"].dump()), one["peak"],
                            one["warmup_steps"], one["total_steps"]};
    schedule.check();
    const auto expected = one["learning_rates"].get<std::vector<double>>();
    ASSERT_EQ(static_cast<int64_t>(expected.size()), schedule.total_steps);
    for (int64_t step = 0; step < schedule.total_steps; ++step)
      EXPECT_NEAR(schedule.learning_rate(step), expected[static_cast<size_t>(step)], 1e-15)
          << one["kind"] << " step " << step;
  }
}

TEST(Schedule, every_name_is_in_the_fixture) {
  const Json cases = read_json(testing::source_folder() / "tests/train/fixtures/schedules.json");
  for (const auto& kind : enum_names(ScheduleKind{}))
    EXPECT_TRUE(std::ranges::any_of(cases, [&](const Json& one) { return one["kind"] == kind.name; }))
        << kind.name;
}

TEST(Schedule, warmup_steps_below_one_and_warmup_ratio_are_shares_rounded_up) {
  EXPECT_EQ(resolve_warmup_steps(7, 0.5, 100), 7);
  EXPECT_EQ(resolve_warmup_steps(0, 0.03, 90), 3);
  EXPECT_EQ(resolve_warmup_steps(0.1, 0, 25), 3);
  EXPECT_EQ(resolve_warmup_steps(0, 0, 25), 0);
}

// Over ten steps the curve of DeepSpeed's WarmupLR, log(n + 1) / log(10), is a table of decimal logarithms.
TEST(Schedule, a_logarithmic_warmup_is_that_of_deepspeed) {
  Schedule schedule{ScheduleKind::constant_with_warmup, {}, 2, 10, 20};
  schedule.warmup_type = WarmupType::log;
  const std::vector<double> log10{0,        0.301030, 0.477121, 0.602060, 0.698970, 0.778151,
                                  0.845098, 0.903090, 0.954243, 1,        1,        1};
  for (size_t step = 0; step < log10.size(); ++step)
    EXPECT_NEAR(schedule.learning_rate(static_cast<int64_t>(step)), 2 * log10[step], 3e-6) << step;
  schedule.warmup_steps = 1;
  EXPECT_EQ(schedule.learning_rate(0), 0);
}

TEST(Schedule, what_a_schedule_cannot_use_is_refused_by_name) {
  EXPECT_THROW(parse_schedule_kwargs(R"({"min_rate": 0.1})"), ConfigError);
  EXPECT_THROW(parse_schedule_kwargs(R"({"min_lr": "low"})"), ConfigError);
  EXPECT_THROW(parse_schedule_kwargs("{min_lr: 1}"), ConfigError);
  EXPECT_THROW((Schedule{ScheduleKind::cosine_with_min_lr, {}, 1e-4, 0, 10}.check()), ConfigError);
  for (const char* out_of_range :
       {R"({"power": -1})", R"({"power": 0})", R"({"min_lr_rate": 1.5})", R"({"min_lr": -1e-5})",
        R"({"lr_end": -1})", R"({"num_cycles": 0})", R"({"decay_type": "sqrt"})", R"({"decay_type": 1})",
        R"({"num_decay_steps": -1})", R"({"min_lr_ratio": 2})", R"({"timescale": 0})"})
    EXPECT_THROW(parse_schedule_kwargs(out_of_range), ConfigError) << out_of_range;
  EXPECT_THROW((Schedule{ScheduleKind::cosine_with_min_lr, {.min_lr = 2e-4}, 1e-4, 0, 10}.check()),
               ConfigError);
  ScheduleKwargs high_end;
  high_end.lr_end = 1;
  EXPECT_THROW((Schedule{ScheduleKind::polynomial, high_end, 1e-4, 0, 10}.check()), ConfigError);
  EXPECT_THROW((Schedule{ScheduleKind::linear, {}, 0, 0, 10}.check()), ConfigError);
}

TEST(Schedule, a_decay_is_whole_steps_that_fit_beside_the_warmup) {
  const auto schedule = [](std::optional<double> decay_steps) {
    ScheduleKwargs kwargs;
    kwargs.num_decay_steps = decay_steps;
    return Schedule{ScheduleKind::warmup_stable_decay, kwargs, 1e-4, 4, 10};
  };
  schedule(6).check();
  EXPECT_THAT(testing::message_of<ConfigError>([&] { schedule(7).check(); }),
              ::testing::HasSubstr("4 steps of warm-up and num_decay_steps 7 are more than the 10 steps"));
  EXPECT_THROW(schedule(2.5).check(), ConfigError);
  EXPECT_THAT(testing::message_of<ConfigError>([&] { schedule(std::nullopt).check(); }),
              ::testing::HasSubstr("num_decay_steps"));
}

// transformers' functions take no other keywords either.
TEST(Schedule, what_another_schedule_reads_is_refused) {
  const auto message = [](ScheduleKind kind, const ScheduleKwargs& kwargs) {
    return testing::message_of<ConfigError>([&] { Schedule{kind, kwargs, 1e-4, 0, 10}.check(); });
  };
  EXPECT_THAT(message(ScheduleKind::cosine, {.min_lr_rate = 0.1}),
              ::testing::HasSubstr("cosine has no min_lr_rate; give --lr_scheduler_type cosine_with_min_lr"));
  EXPECT_THAT(message(ScheduleKind::linear, {.lr_end = 1e-6}), ::testing::HasSubstr("no lr_end"));
  EXPECT_THAT(message(ScheduleKind::polynomial, {.num_cycles = 2}), ::testing::HasSubstr("no num_cycles"));
  EXPECT_THAT(message(ScheduleKind::constant, {.power = 2}), ::testing::HasSubstr("no power"));
  EXPECT_THAT(message(ScheduleKind::cosine, {.decay_type = DecayType::linear}),
              ::testing::HasSubstr("cosine has no decay_type; give --lr_scheduler_type warmup_stable_decay"));
}

}  // namespace
}  // namespace trireme
