// AdamW on a CPU: it is AdamW in fp64, and every compilation of its kernel, in spans of every length, and
// ATen's operations on another device have the bits of step_element, one element at a time.
#include <cmath>

#include <gtest/gtest.h>

#include "trireme/kernels/split_master.h"
#include "trireme/shard/adamw_device.h"
#include "trireme/shard/adamw_host_kernel.h"
#include "trireme/shard/optimizer.h"

#include "tests/shard/adamw_one_by_one.h"
#include "tests/support/guarded_device.h"

namespace trireme::adamw_host_test {
namespace {

constexpr uint64_t kMeanKey = 17, kSquareKey = 18;

AdamwStep step_numbers(int64_t steps) {
  return adamw_step(0.9, 0.99, 1e-8, 0.1, 3e-2, 0.5, steps);
}

template <typename T>
T* data_from(const at::Tensor& tensor, int64_t element) {
  return static_cast<T*>(tensor.mutable_data_ptr()) + element;
}

template <typename Moment>
struct State {
  at::Tensor master, gradient, mean, square, values, low;

  static State random(int64_t count) {
    const at::ScalarType moments = sizeof(Moment) == 2 ? at::kBFloat16 : at::kFloat;
    State state{at::randn({count}),
                at::randn({count}),
                at::randn({count}).mul_(0.1).to(moments),
                at::rand({count}).to(moments),
                at::zeros({count}, at::kBFloat16),
                at::zeros({count}, at::kShort)};
    split_masters(state.master, state.values, state.low);
    return state;
  }
  State clone() const {
    return {master.clone(), gradient.clone(), mean.clone(), square.clone(), values.clone(), low.clone()};
  }
  AdamwSpan<Moment> span(bool split, int64_t begin, int64_t end) const {
    return {split ? nullptr : data_from<float>(master, begin),
            split ? data_from<uint16_t>(low, begin) : nullptr,
            data_from<Bf16>(values, begin),
            data_from<float>(gradient, begin),
            data_from<Moment>(mean, begin),
            data_from<Moment>(square, begin),
            end - begin,
            kMeanKey,
            kSquareKey,
            static_cast<uint64_t>(begin)};
  }
};

template <typename Moment>
void expect_the_bits_of_one_by_one(void (*kernel)(const AdamwSpan<Moment>&, const AdamwStep&)) {
  for (const int64_t count : {1, 15, 1000, 1024, 5003})
    for (const bool split : {false, true}) {
      SCOPED_TRACE(::testing::Message() << count << (split ? ", split" : ""));
      const State<Moment> expected = State<Moment>::random(count), got = expected.clone();
      const int64_t cut = count / 3;  // no multiple of a group of random numbers
      for (int64_t steps = 1; steps <= 2; ++steps) {
        testing::step_one_by_one(expected.span(false, 0, count), step_numbers(steps));
        kernel(got.span(split, 0, cut), step_numbers(steps));
        kernel(got.span(split, cut, count), step_numbers(steps));
      }
      if (split) join_masters(got.values, got.low, got.master);
      split_masters(expected.master, expected.values, expected.low);
      EXPECT_TRUE(at::equal(got.master, expected.master));
      EXPECT_TRUE(at::equal(got.values, expected.values));
      EXPECT_TRUE(at::equal(got.mean, expected.mean));
      EXPECT_TRUE(at::equal(got.square, expected.square));
    }
}

TEST(AdamwOnHost, has_the_bits_of_its_elements_at_each_level_that_the_processor_runs) {
  const auto expect = [](auto wide_moments, auto narrow_moments) {
    expect_the_bits_of_one_by_one<float>(wide_moments);
    expect_the_bits_of_one_by_one<Bf16>(narrow_moments);
  };
  using Wide = void (*)(const AdamwSpan<float>&, const AdamwStep&);
  using Narrow = void (*)(const AdamwSpan<Bf16>&, const AdamwStep&);
  expect(Wide{&simd_base::step_adamw}, Narrow{&simd_base::step_adamw});
  if (simd_level() != SimdLevel::base) expect(Wide{&simd_v3::step_adamw}, Narrow{&simd_v3::step_adamw});
  if (simd_level() == SimdLevel::v4) expect(Wide{&simd_v4::step_adamw}, Narrow{&simd_v4::step_adamw});
  expect(Wide{&step_adamw_on_host}, Narrow{&step_adamw_on_host});
}

TEST(AdamwOnHost, is_adamw_in_fp64) {
  constexpr int64_t kCount = 5000, kSteps = 7;
  const State<float> state = State<float>::random(kCount);
  const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
  const at::Tensor g = exact(state.gradient) * 0.5;
  const at::Tensor mean = exact(state.mean) * 0.9 + g * 0.1,
                   square = exact(state.square) * 0.99 + g * g * 0.01;
  const at::Tensor corrected = (square / (1 - std::pow(0.99, kSteps))).sqrt() + 1e-8;
  const at::Tensor master =
      exact(state.master) * (1 - 3e-2 * 0.1) - 3e-2 / (1 - std::pow(0.9, kSteps)) * mean / corrected;
  step_adamw_on_host(state.span(false, 0, kCount), step_numbers(kSteps));
  EXPECT_LT((exact(state.master) - master).abs().max().item<double>(), 1e-6);
  EXPECT_LT((exact(state.mean) - mean).abs().max().item<double>(), 1e-6);
  EXPECT_LT((exact(state.square) - square).abs().max().item<double>(), 1e-6);
}

TEST(AdamwOnHost, has_the_bits_of_atens_operations_on_a_device_without_a_kernel) {
  const at::Device device = testing::guarded_device();
  ASSERT_FALSE(has_adamw_kernel(device));
  const int64_t count = (int64_t{1} << 18) + 48;
  const std::vector<FlatUnit> units{{"unit", count, {{0, 1003, true}, {1003, count - 1003, false}}}};
  const OptimizerKind& adamw = find_optimizer("adamw_torch");
  for (const at::ScalarType states : {at::kFloat, at::kBFloat16})
    for (const bool split : {false, true}) {
      SCOPED_TRACE(::testing::Message() << states << (split ? ", split" : ""));
      const at::Tensor begin = at::randn({count});
      std::vector<at::Tensor> stepped;
      std::vector<at::Tensor> gradients{at::randn({count}), at::randn({count})};
      for (const at::Device where : {at::Device(at::kCPU), device}) {
        const auto zeros = [&](at::ScalarType dtype) {
          return at::zeros({count}, at::TensorOptions(dtype).device(where));
        };
        const auto optimizer = adamw.make(
            adamw, units, {.weight_decay = 0.1, .state_dtype = states, .seed = 3, .device = where});
        const MasterShare master = split ? MasterShare{{}, zeros(at::kShort), zeros(at::kBFloat16)}
                                         : MasterShare{zeros(at::kFloat), {}, zeros(at::kBFloat16)};
        master.set(begin);
        for (int64_t step = 1; step <= 2; ++step)
          optimizer->step(0, master, gradients[static_cast<size_t>(step - 1)].to(where, false, true),
                          {1e-2, 0.7, step});
        for (const at::Tensor& tensor : {master.fp32(), master.values, optimizer->state(0, "exp_avg"),
                                         optimizer->state(0, "exp_avg_sq")})
          stepped.push_back(tensor.cpu());
      }
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(stepped[i], stepped[i + 4])) << "tensor " << i;
    }
}

}  // namespace
}  // namespace trireme::adamw_host_test
