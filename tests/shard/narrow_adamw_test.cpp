// The arithmetic of a GPU's AdamW with bf16 moments, compiled for the host: it is AdamW, and it rounds as the
// CPU does.
#include "trireme/shard/narrow_adamw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/shard/stochastic_rounding.h"

namespace trireme::narrow_adamw_test {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 1e-8, kDecay = 0.1, kRate = 3e-2, kFactor = 0.5;
constexpr uint64_t kSeed = 11;

// Some elements, mid-way in a training.
struct State {
  at::Tensor master, gradient, mean, square;

  explicit State(int64_t count) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    master = at::randn({count}, generator, at::kFloat);
    gradient = at::randn({count}, generator, at::kFloat);
    mean = at::randn({count}, generator, at::kFloat).mul_(0.1).to(at::kBFloat16);
    square = at::rand({count}, generator, at::kFloat).to(at::kBFloat16);
  }
  NarrowAdamwSpan span(uint64_t stream, uint64_t first_element) const {
    return {master.mutable_data_ptr<float>(),
            gradient.const_data_ptr<float>(),
            static_cast<uint16_t*>(mean.mutable_data_ptr()),
            static_cast<uint16_t*>(square.mutable_data_ptr()),
            master.numel(),
            rounding_key(kSeed, stream),
            rounding_key(kSeed, stream + 1),
            first_element};
  }
};

NarrowAdamwStep step_number(int64_t steps) {
  return narrow_adamw_step(kBeta1, kBeta2, kEpsilon, kDecay, kRate, kFactor, steps);
}

TEST(NarrowAdamw, steps_the_masters_as_adamw_in_fp64_does) {
  State state(1000);
  const at::Tensor g = state.gradient.to(at::kDouble) * kFactor;
  const at::Tensor m = state.mean.to(at::kDouble) * kBeta1 + g * (1 - kBeta1);
  const at::Tensor v = state.square.to(at::kDouble) * kBeta2 + g * g * (1 - kBeta2);
  constexpr int kSteps = 7;
  const at::Tensor expected =
      state.master.to(at::kDouble) * (1 - kRate * kDecay) -
      kRate / (1 - std::pow(kBeta1, kSteps)) * m / ((v / (1 - std::pow(kBeta2, kSteps))).sqrt() + kEpsilon);
  step_elements(state.span(0, 0), step_number(kSteps), 0, 1000);
  EXPECT_LT((state.master.to(at::kDouble) - expected).abs().max().item<double>(), 1e-6);
  // A bf16 value's two neighbours are 2^-7 of it apart at most.
  EXPECT_TRUE(((state.mean.to(at::kDouble) - m).abs() <= m.abs() * 0x1p-7).all().item<bool>());
  EXPECT_TRUE(((state.square.to(at::kDouble) - v).abs() <= v * 0x1p-7).all().item<bool>());
}

TEST(NarrowAdamw, rounds_the_moments_with_the_bits_of_the_cpu_wherever_a_span_begins_and_is_cut) {
  for (const uint64_t first_element : {0U, 5U, 1022U}) {
    constexpr int64_t kCount = 1003;
    State state(kCount);
    // One fp32 operation each, as the header has them.
    const at::Tensor g = state.gradient * static_cast<float>(kFactor);
    const at::Tensor m =
        state.mean.to(at::kFloat) * static_cast<float>(kBeta1) + g * static_cast<float>(1 - kBeta1);
    const at::Tensor v =
        state.square.to(at::kFloat) * static_cast<float>(kBeta2) + g * g * static_cast<float>(1 - kBeta2);
    at::Tensor mean = at::empty({kCount}, at::kBFloat16), square = at::empty({kCount}, at::kBFloat16);
    round_stochastically(m, mean, kSeed, 4, static_cast<int64_t>(first_element));
    round_stochastically(v, square, kSeed, 5, static_cast<int64_t>(first_element));
    for (const auto& [begin, end] : {std::pair{0, 3}, {3, 600}, {600, 1003}})
      step_elements(state.span(4, first_element), step_number(2), begin, end);
    EXPECT_TRUE(at::equal(state.mean.view(at::kShort), mean.view(at::kShort)));
    EXPECT_TRUE(at::equal(state.square.view(at::kShort), square.view(at::kShort)));
  }
}

}  // namespace
}  // namespace trireme::narrow_adamw_test
