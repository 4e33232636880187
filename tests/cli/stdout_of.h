// What an action prints.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace trireme::testing {

// Its standard output. What it throws goes on to the caller, and then nothing stays captured.
template <typename Action>
std::string stdout_of(const Action& action) {
  ::testing::internal::CaptureStdout();
  try {
    action();
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

}  // namespace trireme::testing
