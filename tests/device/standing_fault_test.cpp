// A device that has failed, while the error that ends the run says something else.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/machine_error.h"

#include "tests/support/guarded_device.h"

namespace trireme::standing_fault_test {
namespace {

using ::testing::AllOf;
using testing::fail_guarded_device;
using ::testing::HasSubstr;

// In the words of TORCH_CUDABLAS_CHECK.
c10::Error of_cublas(const char* status) {
  return {{__func__, __FILE__, __LINE__},
          cat("CUDA error: ", status, " when calling `cublasGemmEx(handle)`")};
}

// "78: ..."; empty: the error is not the machine's.
std::string before_bug(const std::exception& error) {
  std::string told;
  take_machine_error_before_bug(
      error, [&](const Error& known) { told = cat(known.exit_code(), ": ", known.what()); });
  return told;
}

class StandingFault : public ::testing::Test {
 protected:
  void SetUp() override { fail_guarded_device(true); }
  void TearDown() override { fail_guarded_device(false); }
};

TEST_F(StandingFault, is_told_in_the_devices_words_with_those_of_the_error) {
  const auto of_device = [](const char* met_as) {
    return AllOf(
        HasSubstr("75: the device failed: CUDA error: uncorrectable ECC error encountered (met as: "),
        HasSubstr(met_as), HasSubstr("; look at nvidia-smi"));
  };
  EXPECT_THAT(before_bug(of_cublas("CUBLAS_STATUS_EXECUTION_FAILED")), of_device("STATUS_EXECUTION_FAILED"));
  EXPECT_THAT(before_bug(of_cublas("CUBLAS_STATUS_ALLOC_FAILED")), of_device("STATUS_ALLOC_FAILED"))
      << "no memory was missing";
  EXPECT_THAT(before_bug(InternalError("FlashAttention-4: no launch")),
              of_device("FlashAttention-4: no launch"));
  EXPECT_THAT(before_bug(std::runtime_error("what")), of_device("what"));
}

TEST_F(StandingFault, is_asked_for_by_a_caller_whose_library_says_something_else) {
  EXPECT_THROW(check_device(), c10::AcceleratorError);
  fail_guarded_device(false);
  EXPECT_NO_THROW(check_device());
}

TEST_F(StandingFault, leaves_errors_that_were_thrown_on_purpose) {
  EXPECT_EQ(before_bug(ConfigError("no such flag")), "");
  EXPECT_EQ(before_bug(DataError("too short")), "");
  EXPECT_EQ(before_bug(CommError("rank 1 did not answer")), "");
}

TEST_F(StandingFault, is_the_devices_alone_to_tell) {
  fail_guarded_device(false);
  for (const char* status :
       {"CUBLAS_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_INTERNAL_ERROR", "CUBLAS_STATUS_NOT_INITIALIZED"})
    EXPECT_EQ(before_bug(of_cublas(status)), "");
  EXPECT_THAT(before_bug(of_cublas("CUBLAS_STATUS_ALLOC_FAILED")), HasSubstr("78: out of device memory: "));
  EXPECT_EQ(before_bug(InternalError("a bug")), "");
}

}  // namespace
}  // namespace trireme::standing_fault_test
