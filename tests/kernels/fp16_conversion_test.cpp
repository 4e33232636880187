// fp16 <-> fp32 in the row kernels of every instruction set, against libtorch's conversions.
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/kernels/token_kernels.h"

namespace trireme {
namespace {

struct Level {
  std::string name;
  const KernelsWith<Fp16>* kernels;
};

std::vector<Level> levels() {
  std::vector<Level> all = {{"base", &simd_base::kTokenKernels.fp16}};
  if (simd_level() != SimdLevel::base) all.push_back({"v3", &simd_v3::kTokenKernels.fp16});
  if (simd_level() == SimdLevel::v4) all.push_back({"v4", &simd_v4::kTokenKernels.fp16});
  return all;
}

// Heads that are not rotated are converted and no more.
RotaryRow copied(int64_t elements) {
  RotaryRow row;
  row.heads = 1;
  row.head_dim = elements;
  return row;
}

at::Tensor every_half() {
  return at::arange(65536, at::kInt).to(at::kShort).view(at::kHalf);
}

// The same numbers; NaN where there is NaN, whatever its bits.
void expect_same(const at::Tensor& got, const at::Tensor& wanted, at::ScalarType bits,
                 const std::string& level) {
  EXPECT_TRUE(at::equal(got.isnan(), wanted.isnan())) << level;
  const at::Tensor numbers = wanted.isnan().logical_not().nonzero().squeeze(1);
  const at::Tensor differ = got.index_select(0, numbers)
                                .view(bits)
                                .ne(wanted.index_select(0, numbers).view(bits))
                                .nonzero()
                                .squeeze(1);
  EXPECT_EQ(differ.numel(), 0)
      << level << ": the first of them is "
      << (differ.numel() > 0 ? wanted.index_select(0, numbers)[differ[0].item<int64_t>()].item<double>() : 0);
}

TEST(Fp16Conversion, every_half_widens_exactly) {
  const at::Tensor from = every_half();
  for (const Level& level : levels()) {
    at::Tensor to = at::empty({65536});
    level.kernels->sf.rotate(static_cast<const Fp16*>(from.const_data_ptr()), copied(65536),
                             to.data_ptr<float>());
    expect_same(to, from.to(at::kFloat), at::kInt, level.name);
  }
}

TEST(Fp16Conversion, floats_narrow_to_the_nearest_half_ties_to_even) {
  // All halves, the points half way between neighbours, and the floats on either side of both.
  const at::Tensor halves = at::arange(0x7c00, at::kInt).to(at::kShort).view(at::kHalf).to(at::kDouble);
  const at::Tensor next = at::cat({halves.slice(0, 1), at::full({1}, 65536.0, at::kDouble)});
  at::Tensor points = at::cat({halves, (halves + next) / 2}).to(at::kFloat);
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor up = at::nextafter(points, at::full({1}, infinity));
  const at::Tensor down = at::nextafter(points, at::full({1}, -infinity));
  points = at::cat({points, up, down, points * 1e-9, points * 1e30,
                    at::tensor({infinity, std::nanf(""), std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::denorm_min(), 65519.996F, 65520.0F, 2.0e-8F})});
  points = at::cat({points, -points});
  for (const Level& level : levels()) {
    at::Tensor to = at::empty(points.sizes(), at::kHalf);
    level.kernels->fs.rotate(points.const_data_ptr<float>(), copied(points.numel()),
                             static_cast<Fp16*>(to.mutable_data_ptr()));
    expect_same(to, points.to(at::kHalf), at::kShort, level.name);
  }
}

}  // namespace
}  // namespace trireme
