// What a plan says of objectives, stages, refusals and files.
#include "trireme/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/plan/plan_files.h"
#include "trireme/plan/plan_json.h"
#include "trireme/plan/plan_text.h"

#include "tests/plan/small_request.h"
#include "tests/support/error_message.h"

namespace trireme::plan_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::small_request;

constexpr int64_t kMiB = int64_t{1} << 20;

template <typename Body>
std::string refusal(const Body& body) {
  return testing::message_of<ConfigError>(body);
}

TEST(PlanRequest, pairs_of_a_packed_sample_are_those_of_its_documents) {
  PlanRequest request = small_request(1, 65536, 100 * kMiB);
  EXPECT_DOUBLE_EQ(request.pairs_of_sample(65536).common, 4 * 65536.0 * 65536 / 2);
  request.document_tokens = 8192;
  EXPECT_DOUBLE_EQ(request.pairs_of_sample(65536).common, 8 * 4 * 8192.0 * 8192 / 2);
  EXPECT_DOUBLE_EQ(request.pairs_of_sample(20000).common, 4 * (2 * 8192.0 * 8192 + 3616.0 * 3616) / 2);
  EXPECT_DOUBLE_EQ(request.pairs_of_sample(4096).common, 4 * 4096.0 * 4096 / 2);
}

TEST(Plan, of_the_longest_length_is_the_fastest_there) {
  PlanRequest request = small_request(4, 0, 100 * kMiB);
  request.objective = Objective::length;
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.best.tokens(), plan.longest_tokens);
  EXPECT_FALSE(Search(request).holds(4, plan.longest_tokens + kLengthQuantum));
}

TEST(Plan, of_the_fewest_devices_fits_on_no_fewer) {
  PlanRequest request = small_request(16, 32768, 100 * kMiB);
  request.objective = Objective::fewest_gpus;
  const Plan plan = make_plan(request);
  ASSERT_TRUE(plan.fits());
  ASSERT_LT(plan.devices, 16);
  ASSERT_GT(plan.devices, 1);
  for (int fewer = 1; fewer < plan.devices; ++fewer) EXPECT_FALSE(Search(request).holds(fewer, 32768));

  request.target_tokens_per_second = plan.best.time.tokens_per_second * 1.01;
  const Plan faster = make_plan(request);
  EXPECT_GT(faster.devices, plan.devices);
  EXPECT_TRUE(faster.reaches(request.target_tokens_per_second));
}

TEST(Plan, of_the_fewest_devices_tries_each_number_of_one_machine) {
  PlanRequest request = small_request(4, 0, 100 * kMiB);
  request.tokens = Search(request).longest(3, kMostLength);
  ASSERT_FALSE(Search(request).holds(2, request.tokens));
  request.objective = Objective::fewest_gpus;
  EXPECT_EQ(make_plan(request).devices, 3);
}

TEST(Plan, that_does_not_fit_names_the_fewest_devices_that_would) {
  for (const auto& [given, fewest] : {std::pair(1, 3), {2, 3}, {4, 12}, {8, 12}}) {
    PlanRequest request = small_request(given, 0, 100 * kMiB);
    Search search(request);
    request.tokens = search.longest(fewest, kMostLength);
    for (const int devices : {1, 2, 4, 8})
      ASSERT_EQ(search.holds(devices, request.tokens), devices > fewest) << devices;
    EXPECT_EQ(make_plan(request).devices_needed, fewest) << given;
  }
}

TEST(Plan, that_does_not_fit_says_how_long_and_on_how_many_it_would) {
  PlanRequest request = small_request(1, 1 << 20, 100 * kMiB);
  const Plan plan = make_plan(request);
  EXPECT_FALSE(plan.fits());
  EXPECT_GT(plan.longest_tokens, 0);
  ASSERT_TRUE(plan.devices_needed);
  EXPECT_TRUE(Search(request).holds(*plan.devices_needed, 1 << 20));
  EXPECT_THAT(plan_text(request, plan), AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("this length on ")));
}

TEST(Plan, names_no_number_of_devices_whose_links_have_no_rate) {
  PlanRequest request = small_request(1, 8192, 400 * kMiB);
  request.hardware.within_machine = {};
  request.target_tokens_per_second = 1e12;
  EXPECT_FALSE(make_plan(request).devices_needed);
}

TEST(Plan, that_does_not_fit_searches_each_length_once) {
  const PlanRequest request = small_request(1, 1 << 20, 100 * kMiB);
  const Plan plan = make_plan(request);
  ASSERT_FALSE(plan.fits());
  Search alone(request);
  EXPECT_FALSE(alone.fastest(1, request.tokens));
  EXPECT_EQ(plan.frontier.back().tokens(), plan.longest_tokens);
  for (const Planned& each : plan.frontier) EXPECT_TRUE(alone.fastest(1, each.tokens()));
  EXPECT_EQ(plan.counts.times, alone.counts().times + 1);  // of the one that is the least over
}

TEST(Plan, frontier_falls_in_speed_of_tokens_and_ends_at_the_longest) {
  const PlanRequest request = small_request(4, 32768, 200 * kMiB);
  const Plan plan = make_plan(request);
  ASSERT_GT(plan.frontier.size(), 2);
  EXPECT_EQ(plan.frontier.back().tokens(), plan.longest_tokens);
  for (const Planned& each : plan.frontier) EXPECT_TRUE(each.memory.fits());
}

TEST(Plan, frontier_says_of_how_many_samples_its_rates_are) {
  const PlanRequest request = small_request(4, 32768, 200 * kMiB);
  const Plan plan = make_plan(request);
  EXPECT_THAT(plan_text(request, plan), HasSubstr(frontier_samples_text(plan.frontier)));
  std::vector<Planned> frontier(2);
  EXPECT_THAT(frontier_samples_text(frontier),
              AllOf(HasSubstr("each at 1 sample a step"), HasSubstr("--samples_per_step")));
  frontier.back().configuration.data_parallel = 4;
  EXPECT_THAT(frontier_samples_text(frontier), HasSubstr("each at 1 to 4 samples a step"));
}

TEST(Plan, frontier_leaves_out_lengths_that_no_run_could_have) {
  PlanRequest request = small_request(3, 3 << 13, 200 * kMiB);
  request.settings.strict_divisible = true;
  request.pinned.ulysses = 3;
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.fits());
  ASSERT_FALSE(plan.frontier.empty());
  for (const Planned& each : plan.frontier) EXPECT_EQ(each.tokens() % 3, 0);
  EXPECT_EQ(plan.frontier.back().tokens(), plan.longest_tokens);
  EXPECT_GE(plan.longest_tokens, 3 << 13);
}

TEST(Plan, of_the_longest_length_tells_what_is_not_possible_from_what_is_too_large) {
  PlanRequest request = small_request(1, 0, 1 * kMiB);
  request.objective = Objective::length;
  EXPECT_THAT(refusal([&] { make_plan(request); }),
              HasSubstr("does not fit on 1 x round: not even with samples of 1,024 tokens"));
  request.pinned.zero = 1;
  request.pinned.offload_parameters = Offload::cpu;
  EXPECT_THAT(refusal([&] { make_plan(request); }), HasSubstr("no configuration shares 1,024 tokens"));
}

TEST(Plan, names_the_estimated_figures_of_its_dtype_and_those_of_none) {
  PlanRequest request = small_request(1, 8192, 100 * kMiB);
  for (const char* figure : {"norm", "norm_32_bit", "peak_flops_16_bit", "peak_flops_32_bit", "to_host"})
    request.hardware.sources.push_back({figure, FigureOrigin::estimated, "a guess"});
  EXPECT_EQ(estimated_figures(request), "norm, peak_flops_16_bit, to_host");
  request.settings.precision = Precision::fp32;
  EXPECT_EQ(estimated_figures(request), "norm_32_bit, peak_flops_32_bit, to_host");
}

TEST(Plan, stages_are_planned_one_by_one) {
  PlanRequest request = small_request(4, 0, 200 * kMiB);
  const auto plans = plan_stages(request, {8192, 16384});
  ASSERT_EQ(plans.size(), 2);
  for (const Plan& plan : plans) {
    PlanRequest alone = request;
    alone.tokens = plan.best.tokens();
    EXPECT_EQ(plan.best.configuration, make_plan(alone).best.configuration);
  }
}

// A layer is stepped in its backward, so that all samples of a step are one micro-batch.
TEST(Plan, of_updates_in_backward_takes_any_number_of_samples_at_once) {
  PlanRequest request = small_request(1, 1024, 400 * kMiB);
  request.settings.update_in_backward = true;
  request.samples_per_step = 5;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.best.configuration.batch, 5);
  EXPECT_EQ(plan.best.configuration.accumulation, 1);
}

TEST(Plan, stage_lengths_may_double) {
  EXPECT_THAT(parse_stage_lengths("32k,128k"), ElementsAre(32768, 131072));
  EXPECT_THAT(parse_stage_lengths("128k,...,1m"), ElementsAre(1 << 17, 1 << 18, 1 << 19, 1 << 20));
  EXPECT_THAT(parse_stage_lengths("100k,...,300k"), ElementsAre(100 << 10, 200 << 10, 300 << 10));
  for (const char* wrong : {"", "...", "1k,...", "...,1k", "4k,2k", "1k,x", "1k,...,8000000t"})
    EXPECT_THROW(parse_stage_lengths(wrong), ConfigError) << wrong;
  EXPECT_THAT(refusal([] { parse_stage_lengths("32k,"); }), HasSubstr("'32k,': entry 2 of 2 is empty"));
}

TEST(Plan, refuses_what_no_run_could_be) {
  const auto with = [](int devices, int64_t tokens, const std::function<void(PlanRequest&)>& change) {
    PlanRequest request = small_request(devices, tokens, 200 * kMiB);
    change(request);
    return refusal([&] { make_plan(request); });
  };
  EXPECT_THAT(with(6, 8192, [](PlanRequest&) {}), HasSubstr("give 4 or 8"));
  EXPECT_THAT(with(4, 8192, [](PlanRequest& r) { r.pinned.ulysses = 16; }), HasSubstr("8 query heads"));
  EXPECT_THAT(with(4, 8192, [](PlanRequest& r) { r.pinned.sp = 3; }), HasSubstr("multiple of 3"));
  EXPECT_THAT(with(4, 8192,
                   [](PlanRequest& r) {
                     r.settings.update_in_backward = true;
                     r.pinned.accumulation = 4;
                   }),
              AllOf(HasSubstr("--update_in_backward"), HasSubstr("--gradient_accumulation_steps 4")));
  EXPECT_THAT(with(4, 8192,
                   [](PlanRequest& r) {
                     r.model.caps_scores = true;
                     r.settings.attention = AttentionKernel::flash;
                   }),
              AllOf(HasSubstr("caps its scores"), HasSubstr("use --attention auto")));
  EXPECT_THAT(with(4, 2, [](PlanRequest& r) { r.pinned.ring = 4; }), HasSubstr("shorter than the 4 ranks"));
  EXPECT_THAT(with(16, 8192,
                   [](PlanRequest& r) {
                     r.samples_per_step = 1;
                     r.pinned.ring = 1;
                   }),
              AllOf(HasSubstr("at most 8 ranks"), HasSubstr("use 8 GPUs")));
  EXPECT_THAT(with(4, 8192,
                   [](PlanRequest& r) {
                     r.samples_per_step = 5;
                     r.pinned.batch = 2;
                   }),
              HasSubstr("not a multiple of 2"));
  EXPECT_THAT(with(8, int64_t{1} << 40,
                   [](PlanRequest& r) {
                     r.document_tokens = 4096;
                     r.pinned.batch = r.pinned.accumulation = 1 << 20;
                   }),
              AllOf(HasSubstr("1,099,511,627,776 tokens / 8 ranks"), HasSubstr("more than the 4.0 GiB")));
}

// What a rank holds of a step depends on how many share a sample: those that hold too much are left out.
TEST(Plan, takes_no_more_tokens_a_step_than_a_rank_of_its_run_holds) {
  PlanRequest request = small_request(4, 32768, 200 * kMiB);
  request.hardware.host_memory_bytes = 32768 * 16 * 2;  // half a sample for each of four ranks
  for (const Candidate& each : list_candidates(request, 4, 32768))
    EXPECT_GE(each.configuration.sequence_ranks(), 2);
  EXPECT_FALSE(list_candidates(request, 4, 32768).empty());
}

TEST(Plan, tells_of_other_axes_where_weights_do_not_fit_and_with_high_degrees) {
  PlanRequest request = small_request(2, 8192, 6 * kMiB);
  const auto tells = ::testing::Contains(HasSubstr("tensor and pipeline parallelism"));
  EXPECT_THAT(make_plan(request).advice, ::testing::Not(tells));  // offloads them
  request.pinned.offload_parameters = request.pinned.offload_optimizer = Offload::none;
  EXPECT_THAT(make_plan(request).advice, tells);
  request = small_request(64, 1 << 20, 200 * kMiB);
  request.pinned.sp = 64;
  EXPECT_THAT(make_plan(request).advice,
              ::testing::Contains(HasSubstr("tensor parallelism inside each machine")));
  request.pinned.sp = 2;
  EXPECT_THAT(make_plan(request).advice,
              ::testing::Not(::testing::Contains(HasSubstr("tensor parallelism"))));
}

TEST(Plan, files_say_what_was_chosen) {
  PlanRequest request = small_request(8, 16384, 90 * kMiB);
  request.samples_per_step = 4;
  const Plan plan = make_plan(request);
  const Configuration& c = plan.best.configuration;
  const auto options = train_options_of(request, plan.best);
  Json as_json;
  for (const auto& [name, value] : options) as_json[name] = value;
  EXPECT_EQ(as_json["max_seq_length"], 16384);
  EXPECT_EQ(as_json["ulysses"], c.ulysses);
  EXPECT_EQ(as_json["zero"], c.zero);
  EXPECT_EQ(as_json["bf16"], true);
  const Json deepspeed = deepspeed_config_of(request, plan.best, 1);
  EXPECT_EQ(deepspeed["train_batch_size"], 4);
  EXPECT_EQ(deepspeed["zero_optimization"]["stage"], c.zero);
  EXPECT_THAT(run_yaml("title", options),
              AllOf(HasSubstr("# title\n"), HasSubstr("max_seq_length: 16384\n")));
  EXPECT_THAT(launch_line(request, plan.best, "--x"), HasSubstr("--hostfile HOSTS -- train --x"));
  const Json json = plan_json(request, plan);
  EXPECT_EQ(json["best"]["configuration"]["ulysses"], c.ulysses);
  EXPECT_EQ(json["best"]["memory"]["device_bytes"], plan.best.memory.device_bytes);
}

}  // namespace
}  // namespace trireme::plan_test
