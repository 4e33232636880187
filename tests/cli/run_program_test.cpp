// How the program ends by an exception that no call of its main thread catches.
#include "trireme/cli/run_program.h"

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::run_program_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Body>
int with_a_thread(const Body& body) {
  return run_program([&] {
    std::thread(body).join();
    return 0;
  });
}

// By substrings: glibc's expressions wait for themselves under the address sanitizer.
TEST(RunProgramDeathTest, tells_what_left_a_thread_and_ends_with_its_code) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      with_a_thread([] { C10_THROW_ERROR(DistBackendError, "NCCL error: remote process exited"); }),
      ::testing::ExitedWithCode(CommError::kExitCode),
      AllOf(HasSubstr("trireme: CommError: a collective failed"), HasSubstr("remote process exited")));
  EXPECT_EXIT(
      with_a_thread([] { C10_THROW_ERROR(DistBackendError, "terminated: CUDA error: illegal access"); }),
      ::testing::ExitedWithCode(SystemFault::kExitCode),
      AllOf(HasSubstr("trireme: SystemFault: the device failed"), HasSubstr("CUDA error: illegal access")));
  EXPECT_EXIT(with_a_thread([] { throw DataError("file x ends early"); }),
              ::testing::ExitedWithCode(DataError::kExitCode),
              HasSubstr("trireme: DataError: file x ends early"));
  EXPECT_EXIT(with_a_thread([] { throw std::runtime_error("what"); }), ::testing::KilledBySignal(SIGABRT),
              HasSubstr("trireme: unexpected error: what"));
}

TEST(RunProgramDeathTest, tells_what_left_the_program_by_what_it_says_of_the_machine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto thrown = [](const auto& error) { return run_program([&]() -> int { throw error; }); };
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  EXPECT_EXIT(thrown(c10::AcceleratorError(here, 700, "CUDA error: illegal access")),
              ::testing::ExitedWithCode(SystemFault::kExitCode),
              HasSubstr("trireme: SystemFault: the device failed"));
  EXPECT_EXIT(thrown(c10::Error(here, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")),
              ::testing::ExitedWithCode(ConfigError::kExitCode),
              HasSubstr("trireme: ConfigError: out of device memory"));
  EXPECT_EXIT(thrown(InternalError("a bug")), ::testing::ExitedWithCode(InternalError::kExitCode),
              HasSubstr("trireme: InternalError: a bug"));
}

// Threads of c10d may be at work on what the end of main would destroy.
TEST(RunProgramDeathTest, ends_at_once_by_an_error_that_is_none_of_ours) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  const auto end_of_main = [&] {
    std::atexit([] { std::_Exit(1); });
    std::exit(run_program([&]() -> int {
      throw c10::Error(here, "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate`");
    }));
  };
  EXPECT_EXIT(end_of_main(), ::testing::ExitedWithCode(InternalError::kExitCode),
              HasSubstr("trireme: unexpected error"));
}

}  // namespace
}  // namespace trireme::run_program_test
