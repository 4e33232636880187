// Activations of a GPU in pinned memory of the host: what comes back is what was put away, however late the
// GPU's two streams do their work, although both memories are given out again as soon as they are dropped.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/memory/make_activation_store.h"

#include "tests/support/pinned_ranges.h"
#include "tests/support/simulated_streams.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using testing::pinning_of;
using testing::SimulatedStreams;
using testing::TemporaryFolder;

constexpr int64_t kLayers = 6;
constexpr int64_t kElements =
    20'000;  // int64: blocks that the allocator keeps, and never gives back to the kernel

// A GPU whose memory is this process's: what is dropped here is given out again while queued work still reads
// it.
class Gpu {
 public:
  explicit Gpu(unsigned seed) : streams(seed), random_(seed + 1) {}

  at::Tensor filled(int64_t value) {
    at::Tensor tensor = at::empty({kElements}, at::kLong);
    streams.compute_unit(
        [data = tensor.mutable_data_ptr<int64_t>(), value] { std::fill_n(data, kElements, value); });
    return tensor;
  }
  void expect_filled(const at::Tensor& tensor, int64_t value) {
    ASSERT_EQ(tensor.numel(), kElements);
    streams.compute_unit([this, data = tensor.const_data_ptr<int64_t>(), value] {
      ++checks;
      if (std::count(data, data + kElements, value) != kElements) ++wrong;
    });
  }
  // Work on memory of its own between two layers, and time in which the streams get on.
  void work_a_while() {
    const at::Tensor own = at::empty({kElements}, at::kLong);
    streams.compute([data = own.mutable_data_ptr<int64_t>()] { std::fill_n(data, kElements, -1); });
    streams.advance(static_cast<int>(random_() % 8));
  }

  SimulatedStreams streams;
  int checks = 0, wrong = 0;

 private:
  std::mt19937 random_;
};

struct StoreCase {
  const char* name;
  bool disk;
  ResidentLayers resident;
  int64_t blocks;  // of the host's memory that are in use at once
  bool unhurried;  // as training has it: nobody waits for a copy that was not given a layer's time
};

class HostSpansTest : public ::testing::TestWithParam<StoreCase> {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

// For the test's sake beforehand, so that none of it is taken from what the GPU has dropped.
void take_blocks(PinnedPool& pool, int64_t count) {
  std::vector<at::Tensor> spans;
  for (int64_t block = 0; block < count; ++block) spans.push_back(pool.take(kElements, at::kLong));
}

void train_step(Gpu& gpu, ActivationStore& store, int64_t step) {
  const auto value_of = [&](int64_t layer) { return 100 * step + layer; };
  gpu.streams.begin_pass();
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    store.put(layer, {gpu.filled(value_of(layer))});
    gpu.work_a_while();
  }
  gpu.streams.compute_unit([] {});  // the head
  for (int64_t layer = kLayers - 1; layer >= 0; --layer) {
    const Saved saved = store.take(layer);
    gpu.work_a_while();
    gpu.expect_filled(saved[0], value_of(layer));
  }
}

TEST_P(HostSpansTest, come_back_whole_in_every_order_of_the_streams_and_pin_the_same_in_every_step) {
  const TemporaryFolder folder;
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Gpu gpu(seed);
    const auto ranges = std::make_shared<testing::PinnedRanges>();
    const auto pool = std::make_shared<PinnedPool>(pinning_of(ranges));
    take_blocks(*pool, GetParam().blocks);
    const int pins = ranges->pins();
    SpillFile file(folder.path(), 0);
    std::unique_ptr<SpanStorage> behind;
    if (GetParam().disk) behind = make_disk_spans(kLayers, file, pool);
    {
      const auto store = make_offloaded_activations(
          kLayers, make_host_spans(kLayers, at::kCPU, pool, gpu.streams.copy_stream(), std::move(behind)),
          GetParam().resident);
      for (int64_t step = 1; step <= 3; ++step) train_step(gpu, *store, step);
    }
    gpu.streams.finish();
    EXPECT_TRUE(gpu.streams.idle()) << "a stream waits for ever";
    EXPECT_EQ(gpu.checks, 3 * kLayers);
    EXPECT_EQ(gpu.wrong, 0);
    if (GetParam().unhurried) {
      EXPECT_THAT(gpu.streams.hasty_waits(), ::testing::IsEmpty());
    }
    EXPECT_EQ(ranges->pins(), pins);
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, HostSpansTest,
                         ::testing::Values(StoreCase{"host", false, {2, 1, 1}, 4, true},
                                           StoreCase{"host_none_stay", false, {0, 1, 1}, 6, false},
                                           StoreCase{"host_two_leave", false, {1, 2, 2}, 5, true},
                                           StoreCase{"disk", true, {2, 1, 2}, 3, true},
                                           StoreCase{"disk_one_ahead", true, {2, 1, 1}, 3, false},
                                           StoreCase{"disk_none_stay", true, {0, 2, 1}, 4, false}),
                         [](const auto& test) { return test.param.name; });

TEST(HostSpans, pin_exactly_what_the_layers_that_leave_keep) {
  install_cpu_caching_allocator();
  Gpu gpu(7);
  const auto ranges = std::make_shared<testing::PinnedRanges>();
  const auto pool = std::make_shared<PinnedPool>(pinning_of(ranges));
  const auto account = std::make_shared<MemoryAccount>(MemorySpace::host);
  const MemoryScope rank(account, MemoryCategory::other);
  const auto store = make_offloaded_activations(
      kLayers, make_host_spans(kLayers, at::kCPU, pool, gpu.streams.copy_stream()), {});
  for (int64_t step = 1; step <= 2; ++step) {
    for (int64_t layer = 0; layer < kLayers; ++layer) store->put(layer, {gpu.filled(layer)});
    gpu.streams.finish();
    constexpr int64_t kLeaving = kLayers - 2, kPages_bytes = (kElements * 8 + 4095) / 4096 * 4096;
    EXPECT_EQ(ranges->bytes(), kLeaving * kPages_bytes);
    EXPECT_EQ(account->state().host.now[MemoryCategory::activations], kLeaving * (kPages_bytes + 4096));
    for (int64_t layer = kLayers - 1; layer >= 0; --layer) store->take(layer);
    gpu.streams.finish();
  }
}

}  // namespace
}  // namespace trireme
