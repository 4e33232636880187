// The player refuses what a GPU would do wrong in silence, and counts bytes.
#include "tests/kernels/played_gpu.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace trireme::played_gpu_test {
namespace {

using played::Array;
using played::Gpu;
using played::Refused;
using ::testing::HasSubstr;
using testing::message_of;

std::vector<float> counted(int count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

enum class Barrier { given, forgotten };

// Each thread's value is the next thread's.
template <Barrier barrier>
__global__ void turn(const float* from, float* to) {
  __shared__ Shared<float, 64> values;
  const auto i = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 2; ++round) {
    values[i] = load_global(from + i);
    if (barrier == Barrier::given || round == 1) __syncthreads();
    store_global(to + i, static_cast<float>(values[(i + 1) % 64]));
    __syncthreads();
  }
}

TEST(PlayedGpu, threads_meet_at_barriers) {
  Gpu gpu;
  const Array<float> x = gpu.array(counted(64)), y = gpu.array<float>(64);
  launch(turn<Barrier::given>, {1, 64}, nullptr, static_cast<const float*>(x.data()), y.data());
  std::vector<float> expected = counted(65);
  expected.erase(expected.begin());
  expected.back() = 1;
  EXPECT_EQ(y.values(), expected);
}

TEST(PlayedGpu, a_barrier_that_is_forgotten_is_refused) {
  Gpu gpu;
  const Array<float> x = gpu.array(counted(64)), y = gpu.array<float>(64);
  EXPECT_THAT(
      message_of<Refused>([&] {
        launch(turn<Barrier::forgotten>, {1, 64}, nullptr, static_cast<const float*>(x.data()), y.data());
      }),
      HasSubstr("reads element 1 of a shared array, which nobody wrote"));
}

__global__ void overwrite() {
  __shared__ Shared<float, 2> value;
  value[1] = static_cast<float>(threadIdx.x);
}
// No wait between the reading of one round and the writing of the next.
__global__ void overwrite_what_others_read() {
  __shared__ Shared<float, 1> value;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 40) value[0] = static_cast<float>(round);
    __syncthreads();
    static_cast<void>(static_cast<float>(value[0]));
  }
}

TEST(PlayedGpu, two_threads_at_one_shared_element_are_refused) {
  Gpu gpu;
  EXPECT_THAT(message_of<Refused>([] {
                launch(overwrite, {1, 64}, nullptr);
              }),
              HasSubstr("thread 1 writes element 1 of a shared array, which block 0, thread 0 used"));
  EXPECT_THAT(message_of<Refused>([] {
                launch(overwrite_what_others_read, {1, 64}, nullptr);
              }),
              HasSubstr("thread 40 writes element 0 of a shared array, which several warps used"));
}

// A warp needs its own barrier only.
template <Barrier barrier>
__global__ void pass_in_warp() {
  __shared__ Shared<int, 32> values;
  const auto i = static_cast<int>(threadIdx.x);
  values[i] = i;
  if (barrier == Barrier::given) __syncwarp();
  for (int j = 0; j < i; ++j) static_cast<void>(static_cast<int>(values[j]));
}

TEST(PlayedGpu, a_warp_needs_a_barrier_too) {
  Gpu gpu;
  EXPECT_NO_THROW(launch(pass_in_warp<Barrier::given>, {2, 32}, nullptr));
  EXPECT_THAT(message_of<Refused>([] {
                launch(pass_in_warp<Barrier::forgotten>, {1, 32}, nullptr);
              }),
              HasSubstr("thread 1 reads element 0 of a shared array, which block 0, thread 0 used"));
}

__global__ void wait_for_some() {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void wait_at_two_places() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}

TEST(PlayedGpu, a_barrier_that_not_all_reach_is_refused) {
  Gpu gpu;
  EXPECT_NO_THROW(launch(wait_for_some, {3, 32}, nullptr));
  EXPECT_THAT(message_of<Refused>([] {
                launch(wait_for_some, {1, 64}, nullptr);
              }),
              HasSubstr("of 64 threads 32 ended, 32 wait for the block"));
  EXPECT_THAT(message_of<Refused>([] {
                launch(wait_at_two_places, {1, 64}, nullptr);
              }),
              HasSubstr("different barriers"));
}

__global__ void sum_warps(const float* from, float* to) {
  const float sum = warp_sum(load_global(from + threadIdx.x));
  if (threadIdx.x % kWarp == 0) store_global(to + threadIdx.x / kWarp, sum);
}
__global__ void shuffle_with(unsigned mask, int lane) {
  if (threadIdx.x < 16) static_cast<void>(__shfl_sync(mask, 1, lane));
}

TEST(PlayedGpu, lanes_give_each_other_values) {
  Gpu gpu;
  const Array<float> x = gpu.array(counted(96)), y = gpu.array<float>(3);
  launch(sum_warps, {1, 96}, nullptr, static_cast<const float*>(x.data()), y.data());
  EXPECT_THAT(y.values(), ::testing::ElementsAre(528, 1552, 2576));
}

TEST(PlayedGpu, wrong_masks_are_refused) {
  Gpu gpu;
  const auto refusal = [](unsigned mask, int lane, int threads = 32) {
    return message_of<Refused>([&] { launch(shuffle_with, {1, threads}, nullptr, mask, lane); });
  };
  EXPECT_NO_THROW(launch(shuffle_with, {1, 32}, nullptr, 0xffffU, 3));
  EXPECT_THAT(refusal(0xfffeU, 3), HasSubstr("lane 0) is not in the mask"));
  EXPECT_THAT(refusal(0xffffU, 16), HasSubstr("asks lane 16"));
  EXPECT_THAT(refusal(kWholeWarp, 3), HasSubstr("0 wait for the block, 16 for their warp"));
  EXPECT_THAT(refusal(kWholeWarp, 3, 16), HasSubstr("lane 16, which is not there"));
}

__global__ void read_four(const float* from) {
  load_global<4>(from);
}
__global__ void read_bytes(const uint8_t* from) {
  load_global(from);
}
__global__ void write_one(float* to) {
  store_global(to, 1.0F);
}
__global__ void read_of_other_block(float* to) {
  if (blockIdx.x == 0) store_global(to, 1.0F);
  if (blockIdx.x == 1) load_global(static_cast<const float*>(to));
}

TEST(PlayedGpu, accesses_that_a_gpu_would_not_check_are_refused) {
  Gpu gpu;
  const Array<float> x = gpu.array(counted(6)), unwritten = gpu.array<float>(4);
  const auto refusal = [](const float* from) {
    return message_of<Refused>([&] { launch(read_four, {1, 1}, nullptr, from); });
  };
  EXPECT_NO_THROW(launch(read_four, {1, 1}, nullptr, static_cast<const float*>(x.data())));
  EXPECT_THAT(refusal(x.data() + 1), HasSubstr("expected a multiple of 16"));
  EXPECT_THAT(refusal(x.data() + 4), HasSubstr("16 bytes from byte 16 of an array of 24"));
  EXPECT_THAT(refusal(unwritten.data()), HasSubstr("which nobody wrote"));
  const auto* bytes = reinterpret_cast<const uint8_t*>(x.data());
  EXPECT_THAT(message_of<Refused>([&] {
                launch(read_bytes, {1, 1}, nullptr, bytes);
              }),
              HasSubstr("array of elements of 4"));
  EXPECT_THAT(message_of<Refused>([&] {
                launch(write_one, {1, 2}, nullptr, x.data());
              }),
              HasSubstr("thread 1 writes element 0 of global memory, which block 0, thread 0 used"));
  EXPECT_THAT(message_of<Refused>([&] {
                launch(read_of_other_block, {2, 1}, nullptr, x.data());
              }),
              HasSubstr("block 1, thread 0 reads element 0 of global memory"));
  EXPECT_THAT(message_of<Refused>([&] { static_cast<void>(unwritten.values()); }),
              HasSubstr("never written"));
}

TEST(PlayedGpuDeathTest, the_host_cannot_touch_what_a_kernel_must_load) {
  EXPECT_DEATH(
      {
        Gpu gpu;
        const Array<float> x = gpu.array(counted(6));
        static_cast<void>(*static_cast<volatile float*>(x.data()));
      },
      "");
}

__global__ void read_twice(const float* from, float* to) {
  const Values<float, 4> values = load_global<4>(from + 4 * global_thread());
  const float first = load_global(from);
  store_global(to + global_thread(), values.at[1] + first);
}

TEST(PlayedGpu, counts_bytes_and_those_at_different_addresses) {
  Gpu gpu;
  const Array<float> x = gpu.array(counted(16)), y = gpu.array<float>(4);
  for (int launches = 1; launches <= 2; ++launches) {
    launch(read_twice, {2, 2}, nullptr, static_cast<const float*>(x.data()), y.data());
    EXPECT_EQ(gpu.counts().launches, launches);
    EXPECT_EQ(gpu.counts().read_bytes, launches * (64 + 16));
    EXPECT_EQ(gpu.counts().distinct_read_bytes, launches * 64);
    EXPECT_EQ(gpu.counts().written_bytes, launches * 16);
    EXPECT_EQ(gpu.counts().distinct_written_bytes, launches * 16);
    EXPECT_EQ(gpu.counts().reads, launches * 8);
    EXPECT_EQ(gpu.counts().writes, launches * 4);
  }
  gpu.clear_counts();
  EXPECT_EQ(gpu.counts().read_bytes, 0);
}

__global__ void narrow(const float* from, Bf16* to, Fp16* to_half) {
  const int64_t i = global_thread();
  const float value = load_global(from + i);
  store_global(to + i, narrowed<Bf16>(value));
  store_global(to_half + i, narrowed<Fp16>(value));
}

TEST(PlayedGpu, rounds_to_the_nearest) {
  Gpu gpu;
  const Array<float> x = gpu.array(std::vector<float>{1.00390625F, 1.01171875F, 65520, -2});
  const Array<Bf16> y = gpu.array<Bf16>(4);
  const Array<Fp16> half = gpu.array<Fp16>(4);
  launch(narrow, {1, 4}, nullptr, static_cast<const float*>(x.data()), y.data(), half.data());
  EXPECT_EQ(widened(y.values()[0]), 1);
  EXPECT_EQ(widened(y.values()[1]), 1.015625F);
  EXPECT_EQ(widened(half.values()[1]), 1.01171875F);
  EXPECT_TRUE(std::isinf(widened(half.values()[2])));
  EXPECT_EQ(widened(half.values()[3]), -2);
}

TEST(PlayedGpu, launches_that_cuda_refuses_are_refused) {
  Gpu gpu;
  const Array<float> x = gpu.array(counted(6));
  EXPECT_THAT(message_of<Refused>([&] {
                launch(write_one, {0, 32}, nullptr, x.data());
              }),
              HasSubstr("0 blocks"));
  EXPECT_THAT(message_of<Refused>([&] {
                launch(write_one, {1, 1025}, nullptr, x.data());
              }),
              HasSubstr("1025 threads"));
}

}  // namespace
}  // namespace trireme::played_gpu_test
