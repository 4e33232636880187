// A GPU's allocation that fails: libtorch's allocator is played by the function that it calls before it
// throws.
#include "trireme/device/out_of_memory.h"

#include <c10/core/AllocatorConfig.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/device_memory_observer.h"
#include "trireme/device/memory_account.h"

#include "tests/support/byte_units.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using enum MemoryCategory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kGiB;
using testing::message_of;
using ::testing::Not;

const c10::Device kGpu(c10::DeviceType::CUDA, 0);

// Of a rank that computes on a GPU.
class OutOfDeviceMemory : public ::testing::Test {
 protected:
  void report(int64_t asked, int64_t allocated, int64_t reserved, c10::Device device = kGpu) {
    c10::reportOutOfMemoryToProfiler(asked, static_cast<size_t>(allocated), static_cast<size_t>(reserved),
                                     device);
  }
  RankMemory memory_{std::make_shared<MemoryAccount>(MemorySpace::host),
                     std::make_shared<DeviceMemoryObserver>()};
};

TEST_F(OutOfDeviceMemory, names_the_category_at_work_the_bytes_asked_and_what_would_help) {
  memory_.account->add(activations, 20 * kGiB);
  memory_.account->set_options({{"--a", tiles, 0.5}, {"--b", activations, 0.5}, {"--c", optimizer, 0.5}});
  const RankMemoryScope rank(memory_);
  const std::string message = message_of<ConfigError>([&] {
    const MemoryScope layer(attention);
    const MemoryScope tile(tiles);
    report(3 * kGiB, 20 * kGiB, 21 * kGiB);
  });
  EXPECT_THAT(message,
              HasSubstr("out of device memory: asked for 3.0 GiB (3221225472 bytes) more for tiles"));
  EXPECT_THAT(message, HasSubstr("this rank holds activations 20.0 GiB. "));
  EXPECT_THAT(message,
              HasSubstr("--b (saves about 10.0 GiB of activations), --a (saves about 1.5 GiB of tiles)"));
  EXPECT_THAT(message, Not(HasSubstr("--c")));
  EXPECT_EQ(MemoryScope::current().category, other) << "scopes are left as by any error";
}

TEST_F(OutOfDeviceMemory, says_when_enough_lies_in_pieces_and_how_to_join_them_where_they_are_not) {
  const RankMemoryScope rank(memory_);
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  EXPECT_THAT(message_of<ConfigError>([&] { report(kGiB, 60 * kGiB, 61 * kGiB - 1); }),
              Not(HasSubstr("expandable_segments")));
  EXPECT_THAT(
      message_of<ConfigError>([&] { report(kGiB, 60 * kGiB, 65 * kGiB); }),
      HasSubstr(
          "5.0 GiB more lie in pieces that are too small: PYTORCH_ALLOC_CONF=expandable_segments:True"));
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  EXPECT_THAT(message_of<ConfigError>([&] { report(kGiB, 60 * kGiB, 65 * kGiB); }),
              AllOf(HasSubstr("lie in pieces that are too small"), Not(HasSubstr("PYTORCH"))));
}

TEST_F(OutOfDeviceMemory, tells_of_the_device_and_not_of_the_host_beside_it) {
  memory_.account->add(optimizer, 7 * kGiB, MemorySpace::host);
  memory_.account->add(gradients, 2 * kGiB);
  memory_.account->set_options(
      {{"--here", gradients, 0.5}, {"--there", optimizer, 0.5, 0, MemorySpace::host}});
  const RankMemoryScope rank(memory_);
  EXPECT_THAT(message_of<ConfigError>([&] { report(kGiB, 0, 0); }),
              AllOf(HasSubstr("holds gradients 2.0 GiB. "), HasSubstr("--here"), Not(HasSubstr("--there"))));
  EXPECT_THAT(message_of<ConfigError>([&] { throw_out_of_memory("host", MemorySpace::host, kGiB, 0); }),
              AllOf(HasSubstr("holds optimizer 7.0 GiB. "), HasSubstr("--there"), Not(HasSubstr("--here"))));
}

TEST_F(OutOfDeviceMemory, is_left_to_libtorch_where_no_rank_is_watched_and_on_the_host) {
  EXPECT_NO_THROW(report(kGiB, 0, 0));
  const RankMemoryScope rank(memory_);
  EXPECT_NO_THROW(report(kGiB, 0, 0, c10::Device(c10::DeviceType::CPU)));
}

TEST_F(OutOfDeviceMemory, without_an_account_still_says_what_is_in_use) {
  const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, memory_.observer);
  EXPECT_THAT(message_of<ConfigError>([&] { report(kGiB, 9 * kGiB, 9 * kGiB); }),
              HasSubstr("this rank holds other 9.0 GiB. "));
}

TEST(OutOfMemory, that_a_library_tells_is_an_error_that_the_user_can_mend) {
  const c10::OutOfMemoryError theirs(c10::SourceLocation{"f", "f.cpp", 1},
                                     "CUDA out of memory. Tried 3 GiB.");
  EXPECT_THAT(as_out_of_memory(theirs)->what(),
              AllOf(HasSubstr("out of device memory"), HasSubstr("Tried 3 GiB"),
                    HasSubstr("--offload_activations cpu")));
  EXPECT_THAT(as_out_of_memory(std::bad_alloc())->what(), HasSubstr("out of host memory"));
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_THAT(as_out_of_memory(no_thread)->what(), HasSubstr("a thread could not be started"));
  EXPECT_FALSE(as_out_of_memory(std::runtime_error("reset by peer")));
  EXPECT_FALSE(as_out_of_memory(std::system_error(std::make_error_code(std::errc::connection_refused))));
}

TEST(OutOfMemory, is_also_what_nccl_reports_in_its_text) {
  const auto told = [](const std::string& reason) {
    return as_out_of_memory(c10::DistBackendError({"told", __FILE__, __LINE__}, reason));
  };
  const auto memory = told("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'");
  ASSERT_TRUE(memory);
  EXPECT_THAT(memory->what(), AllOf(HasSubstr("out of device memory"), HasSubstr("Cuda failure 2")));
  EXPECT_FALSE(told("NCCL error: remote process exited or there was a network error"));
}

// In the words of TORCH_CUDABLAS_CHECK and AT_CUDNN_CHECK.
TEST(OutOfMemory, is_also_what_libraries_of_a_gpu_report_in_theirs) {
  const auto told = [](const std::string& words) {
    return as_out_of_memory(c10::Error({"told", __FILE__, __LINE__}, words));
  };
  const auto memory = told("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
  ASSERT_TRUE(memory);
  EXPECT_THAT(memory->what(),
              AllOf(HasSubstr("out of device memory"), HasSubstr("CUBLAS_STATUS_ALLOC_FAILED"),
                    HasSubstr("--offload_activations cpu")));
  EXPECT_TRUE(told("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"));
  EXPECT_FALSE(told("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"));
  EXPECT_FALSE(told("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"));
}

}  // namespace
}  // namespace trireme
