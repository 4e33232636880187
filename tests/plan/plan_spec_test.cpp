// The one page of a run: figures of the plan, and risks where there are some.
#include "trireme/plan/plan_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/sizes.h"
#include "trireme/plan/plan_text.h"

#include "tests/plan/small_request.h"

namespace trireme::plan_spec_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_request;

constexpr int64_t kMiB = int64_t{1} << 20;

std::string spec_of(const PlanRequest& request, int64_t trained_positions = 1 << 20,
                    const std::string& launch = "launch") {
  return plan_spec(request, make_plan(request), {launch, trained_positions});
}

TEST(PlanSpec, has_the_figures_of_the_plan) {
  PlanRequest request = small_request(4, 32768, 220 * kMiB);
  request.token_budget = 1 << 30;
  const Plan plan = make_plan(request);
  const std::string spec = plan_spec(request, plan, {"trireme train", 32768});
  EXPECT_THAT(spec, AllOf(HasSubstr("| exact length | 32,768 tokens |"),
                          HasSubstr(cat("| memory of each GPU | ",
                                        format_bytes(plan.best.memory.device_bytes), " of 220.0 MiB")),
                          HasSubstr(cat(format_fixed(plan.best.time.seconds, 2), " s, between ")),
                          HasSubstr("| budget | 1,073,741,824 tokens"), HasSubstr("```\ntrireme train\n```"),
                          HasSubstr("--max_seq_length 32768 --ulysses 2 --ring 1`")));
}

TEST(PlanSpec, smoke_test_has_degrees_and_a_rate_of_its_own) {
  PlanRequest request = small_request(4, 1 << 17, 2048 * kMiB);
  request.pinned.ring = 4;
  request.settings.gathers_keys = true;
  const Plan plan = make_plan(request);
  Configuration small = plan.best.configuration;
  small.ulysses = 2;
  small.ring = 1;
  const Planned smoke = make_planned(request, small, 32768);
  const auto rate = [&](double seconds) { return rate_text(smoke.step.tokens() / seconds / 2); };
  EXPECT_THAT(plan_spec(request, plan, {"launch", 1 << 20}),
              AllOf(HasSubstr("on 2 GPUs"), HasSubstr("--ulysses 2 --ring 1 --ring_method ring`"),
                    HasSubstr(cat("between ", rate(smoke.time.most_seconds), " and ",
                                  rate(smoke.time.least_seconds), " for each GPU, of the smoke test's"))));
}

TEST(PlanSpec, names_a_risk_where_it_is_one) {
  PlanRequest request = small_request(8, 65536, 4096 * kMiB);
  const std::vector<std::string> all{
      "Rotary positions",  "A jump in length", "Ulysses over machines", "Ring over machines", "Host memory",
      "Memory of the GPU", "Failures"};
  const auto expect_risks = [&](const std::string& spec, const std::vector<std::string>& risks) {
    for (const std::string& risk : all)
      EXPECT_EQ(spec.find("**" + risk) != std::string::npos, std::ranges::find(risks, risk) != risks.end())
          << risk << "\n"
          << spec;
  };
  request.devices = 4;
  expect_risks(spec_of(request), {});
  expect_risks(spec_of(request, 32768), {"Rotary positions"});
  expect_risks(spec_of(request, 8192), {"Rotary positions", "A jump in length"});
  request.pinned.offload_optimizer = Offload::cpu;
  expect_risks(spec_of(request), {"Host memory"});
  request.pinned.offload_optimizer.reset();
  request.devices = 8;
  request.pinned.ulysses = 8;
  expect_risks(spec_of(request), {"Ulysses over machines", "Failures"});
  request.pinned.ulysses = 4;
  request.pinned.ring = 2;
  expect_risks(spec_of(request), {"Ring over machines", "Failures"});
  request = small_request(1, 32768, 0);
  const Plan roomy = make_plan(small_request(1, 32768, 2048 * kMiB));
  request.hardware.memory_bytes = roomy.best.memory.device_bytes * 5 / 4;
  expect_risks(spec_of(request), {"Memory of the GPU"});
}

TEST(PlanSpec, documents_decide_on_positions) {
  PlanRequest request = small_request(4, 65536, 2048 * kMiB);
  request.document_tokens = 8192;
  EXPECT_THAT(spec_of(request, 8192), Not(HasSubstr("Rotary positions")));
}

TEST(PlanSpec, takes_names_from_outside_as_text) {
  PlanRequest request = small_request(1, 8192, 2048 * kMiB);
  request.model_name = "a|b\n# <script> [x](y) `z`";
  const std::string spec = spec_of(request, 8192, "```\nevil\n```");
  EXPECT_THAT(spec, AllOf(HasSubstr("# a\\|b \\# \\<script\\> \\[x\\](y) \\`z\\` at 8,192 tokens\n"),
                          HasSubstr("````\n```\nevil\n```\n````\n")));
}

TEST(PlanSpec, of_what_does_not_fit_says_so) {
  EXPECT_THAT(spec_of(small_request(1, 1 << 20, 100 * kMiB)), HasSubstr("**This does not fit"));
}

}  // namespace
}  // namespace trireme::plan_spec_test
