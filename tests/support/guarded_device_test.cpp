// What makes the guarded device a witness: each thing that it is to see, done wrong on purpose.
#include "tests/support/guarded_device.h"

#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "trireme/memory/copy_stream.h"

#include "tests/support/guarded_memory.h"

namespace trireme::guarded_device_test {
namespace {

using testing::guarded_device;

TEST(GuardedDevice, computes_what_the_cpu_computes) {
  const at::Tensor x = at::randn({5, 7}), y = at::randn({7, 3});
  const at::Tensor on_x = x.to(guarded_device()), on_y = y.to(guarded_device());
  EXPECT_EQ(on_x.device(), guarded_device());
  EXPECT_TRUE(at::equal(at::mm(on_x, on_y).to(at::kCPU), at::mm(x, y)));
  EXPECT_TRUE(
      at::equal(on_x.t().narrow(0, 2, 3).mul(2).sum(1).to(at::kCPU), x.t().narrow(0, 2, 3).mul(2).sum(1)));
  on_x.narrow(1, 1, 2).zero_();
  EXPECT_EQ(on_x.narrow(1, 1, 2).abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::equal(on_x.narrow(1, 3, 4).to(at::kCPU), x.narrow(1, 3, 4)));
  EXPECT_TRUE(at::equal(at::arange(4, at::TensorOptions(guarded_device())).to(at::kCPU), at::arange(4)));
}

TEST(GuardedDevice, refuses_tensors_of_two_devices) {
  const at::Tensor there = at::ones({4}, guarded_device()), here = at::ones({4});
  EXPECT_THROW(at::add(there, here), c10::Error);
  EXPECT_THROW(there.index_select(0, at::zeros({2}, at::kLong)), c10::Error);
  EXPECT_NO_THROW(at::add(there, at::scalar_tensor(2)));
}

TEST(GuardedDevice, refuses_products_that_a_gpu_refuses) {
  const at::Tensor a = at::ones({2, 3}, guarded_device()).to(at::kBFloat16), b = a.t();
  at::Tensor on_host = at::zeros({2, 2}, at::kBFloat16), wide = at::zeros({2, 2}, guarded_device()),
             out = wide.to(at::kBFloat16), larger = at::zeros({4, 2}, out.options());
  EXPECT_NO_THROW(at::mm_out(out, a, b));
  EXPECT_EQ(out.sum().item<float>(), 12);
  for (at::Tensor* wrong : {&on_host, &wide, &larger}) {
    EXPECT_THROW(at::mm_out(*wrong, a, b), c10::Error);
    EXPECT_THROW(at::addmm_out(*wrong, out, a, b), c10::Error);
  }
}

TEST(GuardedDeviceDeathTest, ends_a_host_that_touches_its_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor there = at::ones({4}, guarded_device());
  const auto killed = [](int status) { return status != 0; };  // by a signal, or by the sanitizer that saw it
  const volatile float* const address = there.const_data_ptr<float>();
  EXPECT_EXIT(std::exit(*address < 0 ? 1 : 0), killed, ".*");
}

TEST(GuardedDevice, memory_given_back_or_never_written_reads_as_nan) {
  at::Tensor there = at::empty({100}, guarded_device());
  EXPECT_TRUE(at::isnan(there).all().item<bool>());
  there.fill_(3);
  const auto* const bytes =
      static_cast<const float*>(testing::guarded_memory().seen_by_operators(there.const_data_ptr()));
  EXPECT_EQ(bytes[99], 3);
  there = at::Tensor();
  EXPECT_TRUE(std::isnan(bytes[99]));
}

TEST(GuardedDevice, a_copy_that_nobody_waits_for_comes_too_late) {
  const auto stream = make_copy_stream(guarded_device());
  const at::Tensor from = at::ones({4});
  at::Tensor waited = at::zeros({4}, guarded_device()), hurried = waited.clone();
  stream->wait_for_compute();
  stream->copy(waited, from);
  stream->compute_waits(stream->mark());
  stream->copy(hurried, from);
  EXPECT_EQ(waited.sum().item<float>(), 4);
  EXPECT_EQ(hurried.sum().item<float>(), 0);
  stream->mark()->wait();
  EXPECT_EQ(hurried.sum().item<float>(), 4);
}

}  // namespace
}  // namespace trireme::guarded_device_test
