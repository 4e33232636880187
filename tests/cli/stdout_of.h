// What an action prints.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace trireme::testing {

// Its standard output; it is to return `expected_code`. What it throws goes on to the caller, and then
// nothing stays captured. It must not assert: gtest prints what failed, which would be captured too.
template <typename Action>
std::string stdout_of(const Action& action, int expected_code = 0) {
  int code = 0;
  ::testing::internal::CaptureStdout();
  try {
    code = action();
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, expected_code) << out;
  return out;
}

}  // namespace trireme::testing
