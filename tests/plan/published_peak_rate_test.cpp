// The maker's rate is known by the name that a driver gives, and only by whole words of it.
#include "trireme/plan/published_peak_rate.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

// Names as drivers give them.
TEST(PublishedPeakRate, is_known_by_the_drivers_name_of_a_gpu) {
  const auto tflops = [](std::string_view name, Precision precision) {
    const auto rate = published_peak_rate(name, precision);
    return rate ? rate->flops_per_second / 1e12 : 0;
  };
  EXPECT_EQ(tflops("NVIDIA H200", Precision::bf16), 989);
  EXPECT_EQ(tflops("NVIDIA H200", Precision::fp16), 989);
  EXPECT_EQ(tflops("NVIDIA H200", Precision::fp32), 67);
  EXPECT_EQ(tflops("NVIDIA H200 NVL", Precision::bf16), 835);
  EXPECT_EQ(tflops("NVIDIA H100 80GB HBM3", Precision::bf16), 989);
  EXPECT_EQ(tflops("NVIDIA H100 PCIe", Precision::bf16), 756);
  EXPECT_EQ(tflops("NVIDIA H100 NVL", Precision::bf16), 835);
  EXPECT_EQ(tflops("NVIDIA GH200 480GB", Precision::bf16), 989);
  EXPECT_EQ(tflops("NVIDIA A100-SXM4-80GB", Precision::bf16), 312);
  EXPECT_EQ(tflops("NVIDIA B200", Precision::bf16), 2250);
  EXPECT_EQ(tflops("NVIDIA GB200", Precision::bf16), 2500);
  EXPECT_EQ(tflops("NVIDIA A10G", Precision::bf16), 70);
  EXPECT_EQ(published_peak_rate("NVIDIA H200", Precision::bf16)->source, "published for NVIDIA H200");
}

TEST(PublishedPeakRate, is_of_whole_words) {
  EXPECT_FALSE(published_peak_rate("NVIDIA GeForce GTX 1080", Precision::bf16));
  EXPECT_FALSE(published_peak_rate("NVIDIA RTX A4000", Precision::bf16)) << "no A40";
  EXPECT_FALSE(published_peak_rate("", Precision::bf16));
}

}  // namespace
}  // namespace trireme
