// What a message's figures mean, beside the forecast of what was told.
#include "trireme/plan/memory_error_causes.h"

#include <gtest/gtest.h>

#include "trireme/forecast/memory_forecast.h"

#include "tests/plan/llama_3_8b.h"

namespace trireme::testing {
namespace {

using enum MemoryErrorCauseKind;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

MemoryError device_error(int64_t asked, int64_t capacity, int64_t free, int64_t allocated,
                         int64_t unallocated) {
  MemoryError error;
  error.asked = asked;
  error.capacity = capacity;
  error.free = free;
  error.allocated = allocated;
  error.unallocated = unallocated;
  return error;
}

bool has(const std::vector<MemoryErrorCause>& causes, MemoryErrorCauseKind kind) {
  return std::ranges::any_of(causes, [&](const MemoryErrorCause& cause) { return cause.kind == kind; });
}

ToldRun told(const PlannedStep& step) {
  return {step.inputs, kGpuLimit_bytes, 80 * kGiB};
}

TEST(MemoryErrorCauses, memory_kept_unused_is_fragmentation_with_its_mend) {
  const auto causes = memory_error_causes(device_error(2 * kGiB, 80 * kGiB, kGiB, 60 * kGiB, 18 * kGiB));
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes.front().kind, fragmentation);
  EXPECT_NE(causes.front().mend.find("expandable_segments:True"), std::string::npos);
  EXPECT_TRUE(memory_error_causes(device_error(2 * kGiB, 80 * kGiB, kGiB, 77 * kGiB, kGiB)).empty());
}

TEST(MemoryErrorCauses, memory_that_no_one_else_explains_is_another_processes) {
  MemoryError error = device_error(kGiB, 80 * kGiB, 500 * kMiB, 40 * kGiB, 100 * kMiB);
  EXPECT_TRUE(has(memory_error_causes(error), other_processes));
  error.process = 79 * kGiB;
  EXPECT_FALSE(has(memory_error_causes(error), other_processes));
  error.others = 30 * kGiB;
  EXPECT_TRUE(has(memory_error_causes(error), other_processes));
}

TEST(MemoryErrorCauses, a_share_of_the_process_and_a_tensor_above_the_device_are_told) {
  MemoryError error = device_error(100 * kGiB, 80 * kGiB, 70 * kGiB, kGiB, 0);
  error.process = 2 * kGiB;
  error.allowed = 8 * kGiB;
  EXPECT_TRUE(has(memory_error_causes(error), one_large_tensor));
  EXPECT_TRUE(has(memory_error_causes(error), allowed_share));
}

TEST(MemoryErrorCauses, logits_masks_and_scores_are_known_by_their_bytes) {
  const ToldRun run = told(llama_step(262144, 4, 8, 3, Recompute::full));
  const auto named = [&](double bytes) {
    const auto causes =
        memory_error_causes(device_error(static_cast<int64_t>(bytes), 80 * kGiB, kGiB, 40 * kGiB, 0), run);
    const auto known = std::ranges::find(causes, known_tensor, &MemoryErrorCause::kind);
    return known == causes.end() ? std::string() : known->what;
  };
  EXPECT_NE(named(65536.0 * 128256 * 4).find("logits of this rank's 65,536 tokens, 4 bytes"),
            std::string::npos);
  EXPECT_NE(named(65536.0 * 128256 * 2 + 1.9e6).find("logits of this rank's 65,536 tokens, 2 bytes"),
            std::string::npos);
  EXPECT_NE(named(262144.0 * 262144 * 8 * 2).find("attention scores of 8 heads"), std::string::npos);
  EXPECT_NE(named(262144.0 * 262144).find("mask"), std::string::npos);
  EXPECT_EQ(named(65536.0 * 128256 * 3), "");
}

TEST(MemoryErrorCauses, the_forecast_agrees_or_the_difference_is_named) {
  const MemoryError error = device_error(kGiB, 80 * kGiB, 500 * kMiB, 77 * kGiB, 500 * kMiB);
  // Does not fit: that is why.
  const auto agrees = memory_error_causes(error, told(llama_step(262144, 4, 8, 3, Recompute::none)));
  ASSERT_EQ(agrees.size(), 1u);
  EXPECT_EQ(agrees.front().kind, too_much);
  EXPECT_NE(agrees.front().what.find("the message agrees"), std::string::npos);
  // Failed early though there was memory: something else took it.
  const auto early = memory_error_causes(device_error(kGiB, 80 * kGiB, 500 * kMiB, 40 * kGiB, kGiB),
                                         told(llama_step(262144, 4, 8, 3, Recompute::none)));
  EXPECT_TRUE(has(early, other_processes));
  EXPECT_NE(std::ranges::find(early, too_much, &MemoryErrorCause::kind)->what.find("something else"),
            std::string::npos);
  // Fits, and yet the run held more.
  const PlannedStep fits = llama_step(65536, 4, 8, 3, Recompute::full);
  ASSERT_LT(memory_forecast(fits.inputs).peak_total_bytes, 60 * kGiB);
  const auto causes = memory_error_causes(error, told(fits));
  EXPECT_FALSE(has(causes, too_much));
  EXPECT_TRUE(has(causes, more_than_forecast));
  EXPECT_FALSE(has(causes, another_device));
  // A device of another size.
  EXPECT_TRUE(has(memory_error_causes(device_error(kGiB, 40 * kGiB, kGiB, 37 * kGiB, kGiB), told(fits)),
                  another_device));
  // Nothing to compare: it is said.
  const auto nothing = memory_error_causes(MemoryError{}, told(fits));
  ASSERT_EQ(nothing.size(), 1u);
  EXPECT_EQ(nothing.front().kind, unexplained);
}

TEST(MemoryErrorCauses, triremes_categories_say_where_the_difference_is) {
  const PlannedStep step = llama_step(65536, 4, 8, 3, Recompute::full);
  MemoryError error;
  error.kind = MemoryErrorKind::trireme;
  error.held = memory_forecast(step.inputs).peak;
  error.held[MemoryCategory::activations] += 30 * kGiB;
  error.allocated = error.held.total();
  error.asked = kGiB;
  error.category = MemoryCategory::attention;
  const auto causes = memory_error_causes(error, told(step));
  const auto more = std::ranges::find(causes, more_than_forecast, &MemoryErrorCause::kind);
  ASSERT_NE(more, causes.end());
  EXPECT_NE(more->what.find("most in activations: "), std::string::npos) << more->what;
}

TEST(MemoryErrorCauses, the_hosts_memory_is_not_the_devices) {
  for (const MemoryErrorKind kind :
       {MemoryErrorKind::killed, MemoryErrorKind::host_allocator, MemoryErrorKind::trireme}) {
    MemoryError error;
    error.kind = kind;
    error.space = MemorySpace::host;
    const auto causes = memory_error_causes(error, told(llama_step(262144, 4, 8, 3, Recompute::none)));
    EXPECT_TRUE(has(causes, host));
    EXPECT_FALSE(has(causes, too_much));
  }
  MemoryError pinned;
  pinned.kind = MemoryErrorKind::pinned_host;
  pinned.space = MemorySpace::host;
  EXPECT_TRUE(has(memory_error_causes(pinned), pinned_host));
  MemoryError nccl;
  nccl.kind = MemoryErrorKind::nccl;
  EXPECT_TRUE(has(memory_error_causes(nccl), beside_the_tensors));
}

}  // namespace
}  // namespace trireme::testing
