// What a search over many devices computes, counted: seconds follow from that.
#include <gtest/gtest.h>

#include "trireme/plan/hardware_catalog.h"
#include "trireme/plan/plan.h"

#include "tests/plan/llama_3_8b.h"

namespace trireme::search_size_test {
namespace {

// The sizes of Llama 3 8B on 512 devices.
PlanRequest large_request(int64_t tokens) {
  PlanRequest request;
  request.model_name = "8b";
  request.model = testing::llama_3_8b();
  request.attention_pairs = [](int64_t n) {
    return 32 * static_cast<double>(n) * static_cast<double>(n) / 2;
  };
  request.hardware = find_hardware("h100-80gb");
  request.devices = 512;
  request.tokens = tokens;
  return request;
}

TEST(SearchSize, of_512_devices_looks_at_each_once_and_asks_the_memory_of_few) {
  const PlanRequest request = large_request(1 << 19);
  Search search(request);
  ASSERT_TRUE(search.fastest(512, request.tokens));
  EXPECT_GT(search.counts().candidates, 3000);
  EXPECT_LT(search.counts().times, 12000);
  // Each has up to 97 positions of what its layers keep.
  EXPECT_LT(search.counts().forecasts, search.counts().candidates);
}

TEST(SearchSize, of_a_whole_plan_of_512_devices_is_under_a_quarter_of_a_million) {
  const Plan plan = make_plan(large_request(1 << 19));
  EXPECT_TRUE(plan.fits());
  EXPECT_GT(plan.frontier.size(), 8);
  EXPECT_LT(plan.counts.times, 150000);
  EXPECT_LT(plan.counts.forecasts, 250000);
}

}  // namespace
}  // namespace trireme::search_size_test
