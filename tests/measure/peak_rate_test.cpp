// MFU is a share of what a GPU's maker promises, where its name is known, and of what was measured where it
// is not.
#include "trireme/measure/peak_rate.h"

#include <gtest/gtest.h>

#include "trireme/measure/matmul_rate.h"
#include "trireme/plan/hardware_catalog.h"

namespace trireme {
namespace {

// Names as drivers give them.
TEST(PeakRate, of_known_gpus_is_the_published_one) {
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

TEST(PeakRate, of_a_gpu_without_a_known_name_is_measured) {
  EXPECT_FALSE(published_peak_rate("NVIDIA GeForce GTX 1080", Precision::bf16));
  EXPECT_FALSE(published_peak_rate("NVIDIA RTX A4000", Precision::bf16)) << "no A40";
  EXPECT_FALSE(published_peak_rate("", Precision::bf16));
  const PeakRate rate = peak_rate(at::kCPU, Precision::fp32, 0.01);
  EXPECT_EQ(rate.source, "measured");
  EXPECT_GT(rate.flops_per_second, 1e8);
}

// Two tables have a GPU's data sheet: by the driver's name, and the planner's.
TEST(PeakRate, is_the_catalogs_for_its_gpus) {
  for (const HardwareProfile& profile : hardware_catalog()) {
    EXPECT_EQ(published_peak_rate(profile.description, Precision::bf16)->flops_per_second,
              profile.peak_flops_16_bit)
        << profile.name;
    EXPECT_EQ(published_peak_rate(profile.description, Precision::fp32)->flops_per_second,
              profile.peak_flops_32_bit)
        << profile.name;
  }
}

}  // namespace
}  // namespace trireme
