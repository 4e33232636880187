#include "trireme/device/device_fault.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/out_of_memory.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;

c10::AcceleratorError cuda_error(int32_t code, const char* text) {
  return {{__func__, __FILE__, __LINE__}, code, text};
}

TEST(DeviceFault, of_a_gpu_is_one_that_a_restart_may_cure) {
  const auto fault = as_device_fault(cuda_error(214, "CUDA error: uncorrectable ECC error encountered\n"));
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->exit_code(), 75);
  EXPECT_THAT(fault->what(), HasSubstr("uncorrectable ECC error encountered; look at"));
}

// As c10d's watchdog of NCCL passes it on.
TEST(DeviceFault, is_known_in_the_words_of_a_collective) {
  const auto of_c10d = [](const char* text) {
    return as_device_fault(c10::DistBackendError({"watchdog", __FILE__, __LINE__}, text));
  };
  EXPECT_THAT(of_c10d("watchdog thread terminated with exception: CUDA error: uncorrectable ECC error")
                  .value()
                  .what(),
              HasSubstr("uncorrectable ECC error; look at"));
  EXPECT_FALSE(of_c10d("NCCL error: remote process exited").has_value());
}

TEST(DeviceFault, is_not_what_memory_or_another_error_is) {
  const auto memory = cuda_error(2, "CUDA error: out of memory\n");
  EXPECT_TRUE(as_out_of_memory(memory).has_value());
  EXPECT_FALSE(as_device_fault(memory).has_value());
  EXPECT_FALSE(as_out_of_memory(cuda_error(214, "CUDA error")).has_value());
  EXPECT_FALSE(as_device_fault(std::runtime_error("CUDA error")).has_value());
}

}  // namespace
}  // namespace trireme
