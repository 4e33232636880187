// MFU is a share of what a GPU's maker promises, where its name is known, and of what was measured where it
// is not.
#include "trireme/measure/peak_rate.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(PeakRate, of_a_device_without_a_published_one_is_measured) {
  const PeakRate rate = peak_rate(at::kCPU, Precision::fp32, 0.01);
  EXPECT_EQ(rate.source, "measured");
  EXPECT_GT(rate.flops_per_second, 1e8);
}

}  // namespace
}  // namespace trireme
