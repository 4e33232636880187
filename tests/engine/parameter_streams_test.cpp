// Parameters on the host of a GPU, or on disk beside one, through the executor's order: the computation reads
// each unit as it is after its last update, however late the GPU's streams do their work; and nobody waits
// for a copy or a gather that was not given a unit's time. In the binary that counts memory, for its
// allocator.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/engine/unit_order.h"

#include "tests/support/change_master.h"
#include "tests/support/simulated_group.h"
#include "tests/support/simulated_streams.h"
#include "tests/support/temporary_folder.h"

namespace trireme::parameter_streams_test {
namespace {

using testing::SimulatedStreams;
using testing::TemporaryFolder;

constexpr int64_t kElements =
    80'000;  // shares are blocks that the allocator keeps, and never gives back to the kernel
// Embedding, layers, head; back in groups of two layers.
const std::vector<int> kOrder{0, 1, 2, 3, 4, 5, 3, 4, 3, 1, 2, 1};
constexpr int kUnits = 6;

struct OffloadCase {
  const char* name;
  Offload offload;
  int ranks;
};

class ParameterStreams : public ::testing::TestWithParam<OffloadCase> {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

// Also the host's memory that shares are read into is given out again at once.
void work_a_while(SimulatedStreams& streams, unsigned most) {
  const at::Tensor own = at::empty({kElements}, at::kFloat), half = at::empty({kElements / 2}, at::kFloat);
  for (const at::Tensor& memory : {own, half})
    streams.compute([data = memory.mutable_data_ptr<float>(), count = memory.numel()] {
      std::fill_n(data, count, -1.F);
    });
  streams.advance(static_cast<int>(most));
}

TEST_P(ParameterStreams, bring_each_unit_as_it_is_after_its_last_update_and_nobody_waits_in_haste) {
  const TemporaryFolder folder;
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedStreams streams(seed);
    std::mt19937 random(seed);
    Group group = testing::simulated_group(streams, GetParam().ranks);
    SpillFile file(folder.path(), 0);
    const std::vector<FlatUnit> units(kUnits, {"unit", kElements, {}});
    const auto store = make_sharded_parameters(units, group,
                                               {.parameters = GetParam().offload,
                                                .spill = &file,
                                                .copies = streams.copy_stream(),
                                                .pinned = std::make_shared<PinnedPool>(no_pinning())});
    for (int unit = 0; unit < kUnits; ++unit) {
      testing::change_master(*store, unit, [&](const at::Tensor& master) { master.fill_(unit); });
    }
    int checks = 0, wrong = 0;
    for (int step = 0; step < 3; ++step) {
      streams.begin_pass();
      UnitOrder order(*store, kOrder);
      for (const int unit : kOrder) {
        const at::Tensor values = order.gather(unit);
        ASSERT_EQ(values.numel(), kElements);
        streams.compute_unit(
            [&, data = values.const_data_ptr<float>(), expected = static_cast<float>(100 * step + unit)] {
              ++checks;
              if (std::count(data, data + kElements, expected) != kElements) ++wrong;
            });
        order.release(unit);
        work_a_while(streams, random() % 12);
      }
      streams.finish();          // as the host waits for a step's norm
      streams.begin_pass();      // what was begun too early may be waited for
      store->prefetch_later(1);  // too early: before its update
      for (int unit = 0; unit < kUnits; ++unit) {
        testing::change_master(*store, unit, [&](const at::Tensor& master) { master.add_(100); });
      }
    }
    streams.finish();
    EXPECT_TRUE(streams.idle()) << "a stream waits for ever";
    EXPECT_EQ(checks, 3 * static_cast<int>(kOrder.size()));
    EXPECT_EQ(wrong, 0);
    std::vector<std::string> hasty = streams.hasty_waits();
    // A share that is read from disk goes up and is gathered in the time of one unit.
    if (GetParam().offload == Offload::disk)
      std::erase_if(hasty, [](const std::string& wait) { return wait.starts_with("communication"); });
    EXPECT_THAT(hasty, ::testing::IsEmpty());
  }
}

// ZeRO 1 and 2: ranks exchange what they stepped at a unit's next use.
TEST(ReplicatedParameterStreams, exchange_new_values_beside_the_unit_before) {
  install_cpu_caching_allocator();
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    SimulatedStreams streams(seed);
    std::mt19937 random(seed);
    Group group = testing::simulated_group(streams, 2);
    const std::vector<FlatUnit> units(kUnits, {"unit", kElements, {}});
    const auto store = make_replicated_parameters(units, group, /*shard_masters=*/true, {});
    int wrong = 0;
    for (int step = 1; step <= 3; ++step) {
      for (int unit = 0; unit < kUnits; ++unit) {
        testing::change_master(*store, unit,
                               [&](const at::Tensor& master) { master.fill_(100 * step + unit); });
      }
      streams.begin_pass();
      UnitOrder order(*store, kOrder);
      for (const int unit : kOrder) {
        const at::Tensor values = order.gather(unit);
        streams.compute_unit(
            [&, data = values.const_data_ptr<float>(), expected = static_cast<float>(100 * step + unit)] {
              if (std::count(data, data + kElements, expected) != kElements) ++wrong;
            });
        order.release(unit);
        work_a_while(streams, random() % 12);
      }
      streams.finish();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_THAT(streams.hasty_waits(), ::testing::IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Offloads, ParameterStreams,
                         ::testing::Values(OffloadCase{"host", Offload::cpu, 1},
                                           OffloadCase{"host_2_ranks", Offload::cpu, 2},
                                           OffloadCase{"disk", Offload::disk, 1},
                                           OffloadCase{"disk_2_ranks", Offload::disk, 2}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trireme::parameter_streams_test
