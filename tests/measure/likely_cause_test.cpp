// Each cause of slow steps is named where it is there.
#include "trireme/measure/likely_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::likely_cause_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

StepShares quick() {
  return {.step_seconds = 2,
          .data_seconds = 0.1,
          .exchange_seconds = 0.2,
          .offload_seconds = 0.1,
          .attention_kernel = "flash",
          .tokens_of_rank = 16384,
          .attention_tokens = 32768};
}

TEST(LikelyCause, is_the_longest_wait_where_it_is_a_quarter_of_the_step) {
  StepShares data = quick(), exchange = quick(), offload = quick();
  data.data_seconds = 0.9;
  exchange.exchange_seconds = 1.5;
  offload.offload_seconds = 0.6;
  EXPECT_THAT(likely_cause(data), AllOf(HasSubstr("data, 45 %"), HasSubstr("trireme tokenize")));
  EXPECT_THAT(likely_cause(exchange), AllOf(HasSubstr("exchanges"), HasSubstr("75 %")));
  EXPECT_THAT(likely_cause(offload), AllOf(HasSubstr("offloaded, 30 %"), HasSubstr("--offload_dir")));
}

TEST(LikelyCause, is_else_the_kernel_few_tokens_or_copies_that_nobody_times) {
  StepShares kernel = quick(), few = quick(), copies = quick();
  kernel.attention_kernel = "ulysses over reference";
  kernel.attends_by_reference = true;
  few.tokens_of_rank = 128;
  copies.copies_are_not_timed = true;
  EXPECT_THAT(likely_cause(kernel), HasSubstr("attention kernel 'ulysses over reference'"));
  EXPECT_THAT(likely_cause(few), HasSubstr("128 tokens"));
  EXPECT_THAT(likely_cause(copies), HasSubstr("copies"));
  EXPECT_THAT(likely_cause(quick()), HasSubstr("no wait stands out"));
}

TEST(PublishedTrainingRates, are_of_the_gpu_that_the_driver_names) {
  EXPECT_THAT(published_training_rates("NVIDIA H100 80GB HBM3"), HasSubstr("495 tokens/s"));
  EXPECT_THAT(published_training_rates("NVIDIA H200"), HasSubstr("1.2M"));
  EXPECT_EQ(published_training_rates("Tesla T4"), "");
}

}  // namespace
}  // namespace trireme::likely_cause_test
