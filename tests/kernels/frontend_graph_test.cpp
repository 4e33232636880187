// cuDNN plans the graphs of attention_graph.h for an H200 by its properties, without one, with the memory
// that the forecast counts. Built where cuDNN's and cudnn-frontend's headers are; cuDNN is loaded from there.
#include "trireme/kernels/frontend_graph.h"

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;

// As the driver would tell them (tests/python/cudnn_graphs.py).
constexpr const char* kH200 = R"({"deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000,
  "cudaDeviceId": 0, "pciDeviceId": 0, "multiProcessorCount": 132, "warpSize": 32,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024,
  "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 62914560, "totalGlobalMem": 150000000000,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "isTccDriver": 0, "supportCoopLaunch": 1})";

class PlannedByCudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    // cuDNN asks for the driver by this name; where there is none, one without a device serves.
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      ASSERT_NE(::dlopen(TRIREME_DRIVER_STAND_IN, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
    }
    load_cudnn(TRIREME_CUDNN_LIBRARY);
  }
  static int64_t workspace_bytes(const GraphCall& call, int compute_capability = 90) {
    return FrontendGraph(attention_graph(call), {compute_capability, nullptr, kH200}).workspace_bytes();
  }
};

// q, k and v side by side in a row, as the layers have them.
GraphCall packed(GraphPass pass, int64_t heads, int64_t kv_heads, int64_t width, const Band& band,
                 int64_t segments, int64_t longest, int64_t all_rows) {
  const GraphStrides qkv{(heads + 2 * kv_heads) * width, width};
  return {pass,    GraphElement::bf16, heads,    kv_heads, width, 0.125, band, segments, longest,
          longest, all_rows,           all_rows, qkv,      qkv,   qkv};
}

constexpr Band kCausal{kUnbounded, 0}, kFull{}, kWindow{511, 0}, kBothSides{511, 511};

TEST_F(PlannedByCudnn, forward_needs_no_more_than_a_table_of_its_segments) {
  for (const Band& band : {kCausal, kFull, kBothSides})
    EXPECT_LE(workspace_bytes(packed(GraphPass::forward, 32, 8, 128, band, 60, 2000, 131072)), 64 << 10);
  EXPECT_LE(workspace_bytes(packed(GraphPass::forward, 4, 2, 48, kCausal, 1, 5, 5)), 64 << 10);
}

TEST_F(PlannedByCudnn, backward_needs_the_memory_that_is_forecast) {
  const auto expect_forecast = [](const GraphCall& call) {
    const int64_t rest =
        workspace_bytes(call) -
        graph_backward_bytes(call.all_rows, call.all_keys, call.query_heads, call.kv_heads, call.width);
    EXPECT_GE(rest, 0);
    EXPECT_LE(rest, 64 << 10);
  };
  expect_forecast(packed(GraphPass::backward, 32, 8, 128, kCausal, 60, 2000, 131072));
  expect_forecast(packed(GraphPass::backward, 16, 16, 64, kWindow, 3, 70000, 131072));
  expect_forecast(packed(GraphPass::backward, 6, 3, 48, kBothSides, 9, 131, 1111));
  expect_forecast(packed(GraphPass::backward, 4, 1, 96, kFull, 1, 64, 64));
}

// The rest of a document on another rank of a ring: more keys than rows.
TEST_F(PlannedByCudnn, segments_with_more_keys_than_rows) {
  for (const GraphPass pass : {GraphPass::forward, GraphPass::backward}) {
    GraphCall call = packed(pass, 8, 2, 128, kCausal, 20, 500, 4096);
    call.longest_k = call.all_keys = 9000;
    EXPECT_GT(workspace_bytes(call), 0);
  }
}

TEST_F(PlannedByCudnn, what_cudnn_refuses_is_told_in_its_words) {
  const auto refused = [](const GraphCall& call) {
    return testing::message_of<ConfigError>([&] { workspace_bytes(call, 80); });
  };
  EXPECT_THAT(refused(packed(GraphPass::backward, 8, 2, 128, kCausal, 4, 500, 2000)),
              HasSubstr("--attention auto"));
}

}  // namespace
}  // namespace trireme
