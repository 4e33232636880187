// Parameters on the host of a GPU: the computation reads what the host held, however late the GPU's streams
// do their work, and never the values before an update.
#include "trireme/shard/unit_uploads.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"

#include "tests/support/simulated_streams.h"

namespace trireme::unit_uploads_test {
namespace {

using testing::SimulatedStreams;

constexpr int kUnits = 5;
constexpr int64_t kElements =
    20'000;  // int64: blocks that the allocator keeps, and never gives back to the kernel

std::vector<at::Tensor> units_on_host() {
  std::vector<at::Tensor> host;
  host.reserve(kUnits);
  for (int unit = 0; unit < kUnits; ++unit) host.push_back(at::full({kElements}, unit, at::kLong));
  return host;
}

struct Seen {
  int checks = 0, wrong = 0;
};

// A pass over the units, each uploaded while the one before computes: it must see 100 x step + unit.
void pass_over(const std::vector<at::Tensor>& host, int step, UnitUploads& uploads, SimulatedStreams& streams,
               Seen& seen, const std::function<void()>& after_unit) {
  for (int unit = 0; unit < kUnits; ++unit) {
    if (!uploads.begun(unit)) uploads.begin(unit, host[unit]);
    const at::Tensor values = uploads.finish(unit);
    if (unit + 1 < kUnits) uploads.begin(unit + 1, host[unit + 1]);
    streams.compute_unit([&, data = values.const_data_ptr<int64_t>(), value = 100 * step + unit] {
      ++seen.checks;
      if (std::count(data, data + kElements, value) != kElements) ++seen.wrong;
    });
    after_unit();
  }
}

class UnitUploadsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

TEST_F(UnitUploadsTest, come_whole_and_as_they_are_after_their_last_update_in_every_order_of_the_streams) {
  const std::vector<at::Tensor> host = units_on_host();
  for (unsigned seed = 0; seed < 40; ++seed) {
    SimulatedStreams streams(seed);
    std::mt19937 random(seed);
    Seen seen;
    const auto work_a_while = [&] {
      // Work on memory of its own, that is given out again at once.
      const at::Tensor own = at::empty({kElements}, at::kLong);
      streams.compute([data = own.mutable_data_ptr<int64_t>()] { std::fill_n(data, kElements, -1); });
      streams.advance(static_cast<int>(random() % 8));
    };
    {
      UnitUploads uploads(kUnits, at::kCPU, streams.copy_stream());
      for (int step = 0; step < 3; ++step) {
        pass_over(host, step, uploads, streams, seen, work_a_while);
        // One that was begun too early for its update.
        uploads.begin(0, host[0]);
        streams.finish();
        for (int unit = 0; unit < kUnits; ++unit) {
          uploads.drop(unit);
          host[unit].fill_(step < 2 ? 100 * (step + 1) + unit : unit);
        }
      }
    }
    streams.finish();
    EXPECT_TRUE(streams.idle());
    EXPECT_EQ(seen.checks, 3 * kUnits);
    ASSERT_EQ(seen.wrong, 0) << "seed " << seed;
  }
}

// Stepped on the device: the next upload has the new values, though the host never waited for them.
TEST_F(UnitUploadsTest, come_as_they_were_brought_back_in_every_order_of_the_streams) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SimulatedStreams streams(seed);
    std::mt19937 random(seed);
    const std::vector<at::Tensor> host = units_on_host();
    Seen seen;
    {
      UnitUploads uploads(kUnits, at::kCPU, streams.copy_stream());
      for (int step = 0; step < 3; ++step) {
        streams.begin_pass();
        pass_over(host, step, uploads, streams, seen,
                  [&] { streams.advance(static_cast<int>(random() % 8)); });
        for (int unit = 0; unit < kUnits; ++unit) {
          uploads.drop(unit);
          const at::Tensor stepped = at::empty({kElements}, at::kLong);
          streams.compute_unit([data = stepped.mutable_data_ptr<int64_t>(), value = 100 * (step + 1) + unit] {
            std::fill_n(data, kElements, value);
          });
          uploads.bring_back(unit, host[unit], stepped);
          streams.advance(static_cast<int>(random() % 4));
        }
      }
      EXPECT_TRUE(streams.hasty_waits().empty()) << streams.hasty_waits().front();
      for (int unit = 0; unit < kUnits; ++unit) {
        uploads.drop(unit);
        EXPECT_TRUE(host[unit].eq(300 + unit).all().item<bool>()) << "the host has waited";
      }
    }
    streams.finish();
    EXPECT_EQ(seen.checks, 3 * kUnits);
    ASSERT_EQ(seen.wrong, 0) << "seed " << seed;
  }
}

TEST_F(UnitUploadsTest, wait_for_their_copy_before_the_host_may_change) {
  SimulatedStreams streams(1);
  UnitUploads uploads(1, at::kCPU, streams.copy_stream());
  uploads.begin(0, at::zeros({kElements}, at::kLong));
  EXPECT_FALSE(streams.idle());
  uploads.drop(0);
  EXPECT_TRUE(streams.idle());
}

TEST_F(UnitUploadsTest, are_parameters_of_the_device) {
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope rank(account, MemoryCategory::other);
  const at::Tensor host = at::zeros({kElements}, at::kFloat);
  UnitUploads uploads(2, at::kCPU, make_copy_stream(at::kCPU));
  uploads.begin(1, host);
  EXPECT_THROW(uploads.begin(1, host), InternalError);
  EXPECT_EQ(account->state().now[MemoryCategory::parameters], 4 * kElements);
  const at::Tensor values = uploads.finish(1);
  EXPECT_TRUE(at::equal(values, host));
  EXPECT_EQ(account->state().now[MemoryCategory::parameters], 4 * kElements);
  uploads.begin(0, host);
  uploads.drop(0);
  EXPECT_EQ(account->state().now[MemoryCategory::parameters], 4 * kElements);
}

}  // namespace
}  // namespace trireme::unit_uploads_test
