// Each check of `trireme validate` passes what is good and fails what is not, with a reason.
#include "trireme/train/checks.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::checks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(CheckLosses, fails_what_is_not_finite_worse_than_a_guess_or_rising) {
  EXPECT_EQ(check_losses({4.3, 4.0, 3.0, 3.1, 2.9}, 70, "").verdict, Verdict::pass);
  EXPECT_EQ(check_losses({1.0, 1.05, 1.0, 0.98, 1.04}, 70, "").verdict, Verdict::pass) << "a trained model";
  const auto failed = [](const std::vector<double>& losses, const std::string& failure = "") {
    const Check check = check_losses(losses, 70, failure);
    EXPECT_EQ(check.verdict, Verdict::fail);
    return check.reason;
  };
  EXPECT_THAT(failed({4, 4, kNan, 4, 4}), HasSubstr("not finite: the loss of step 3 is nan"));
  EXPECT_THAT(failed({9, 8, 7, 6, 5}), AllOf(HasSubstr("worse than a guess"), HasSubstr("4.2485")));
  EXPECT_THAT(failed({2, 2, 2, 3, 4}), HasSubstr("it rises"));
  EXPECT_EQ(failed({2, 2}, "step 3: the loss is nan"), "step 3: the loss is nan");
  failed({});
}

TEST(CheckDocuments, names_each_ranks_digest_where_they_differ) {
  EXPECT_EQ(check_documents({255, 255}, true).verdict, Verdict::pass);
  const Check check = check_documents({255, 254}, false);
  EXPECT_EQ(check.verdict, Verdict::fail);
  EXPECT_THAT(check.reason,
              AllOf(HasSubstr("rank 0 00000000000000ff"), HasSubstr("rank 1 00000000000000fe")));
}

TEST(CheckKernel, fails_the_plain_one_at_lengths_where_it_is_slow) {
  EXPECT_EQ(check_kernel("flash-cpu", false, 1 << 20).verdict, Verdict::pass);
  EXPECT_EQ(check_kernel("reference", true, 4096).verdict, Verdict::pass);
  const Check check = check_kernel("ring of 2 over reference", true, 8192);
  EXPECT_EQ(check.verdict, Verdict::fail);
  EXPECT_THAT(check.reason, HasSubstr("--attention auto"));
}

StepRate rate_of(double share) {
  StepRate rate;
  rate.median_step_seconds = 2;
  rate.tokens_per_second = 1000;
  rate.matmul_fp32_flops_per_second = 1e12;
  rate.model_flops_per_step = share * 2e12;
  return rate;
}

TEST(CheckThroughput, names_the_likely_cause_where_it_is_low) {
  const StepShares shares{.step_seconds = 2, .data_seconds = 1.5};
  const Check good = check_throughput(rate_of(0.4), 2, 0.1, shares, "");
  EXPECT_EQ(good.verdict, Verdict::pass);
  EXPECT_THAT(good.reason, AllOf(HasSubstr("500.0 tokens/s a rank"), HasSubstr("40.0 %"),
                                 HasSubstr("no published figures")));
  const Check low = check_throughput(rate_of(0.05), 2, 0.1, shares, "8B: 495 tokens/s (ALST)");
  EXPECT_EQ(low.verdict, Verdict::fail);
  EXPECT_THAT(low.reason, AllOf(HasSubstr("below 10.0 %"), HasSubstr("Likely cause: waiting for data, 75 %"),
                                HasSubstr("published: 8B: 495")));
}

TEST(CheckOneRank, fails_beyond_the_tolerance_and_names_the_worst) {
  VerifyResult result;
  result.tensors = {{"grad.a", 2e-4, 1}, {"loss", 1e-7, 4}};
  result.tolerance = 1e-4;
  EXPECT_EQ(check_one_rank(result).verdict, Verdict::fail);
  EXPECT_THAT(check_one_rank(result).reason, AllOf(HasSubstr("grad.a"), HasSubstr("2.0e-04")));
  result.tensors.front().error = 9e-5;
  EXPECT_EQ(check_one_rank(result).verdict, Verdict::pass);
}

TEST(CheckMemory, fails_a_rank_above_the_share_of_its_room_that_is_allowed) {
  DryRun run;
  run.allowed_share = 0.75;
  run.ranks = {{.process_bytes = 70, .room_bytes = 100}, {.process_bytes = 76, .room_bytes = 100}};
  EXPECT_EQ(check_memory(run).verdict, Verdict::fail);
  EXPECT_THAT(check_memory(run).reason, HasSubstr("76.0 %"));
  run.ranks[1].process_bytes = 75;
  EXPECT_EQ(check_memory(run).verdict, Verdict::pass);
  run.allowed_share = 0.9;
  run.ranks[1].process_bytes = 89;
  EXPECT_EQ(check_memory(run).verdict, Verdict::pass);
  EXPECT_THAT(check_memory(run).reason, HasSubstr("90.0 % is allowed, for as much is kept there as fits"));
}

}  // namespace
}  // namespace trireme::checks_test
