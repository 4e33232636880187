#include "trireme/shard/stochastic_rounding.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "trireme/base/error.h"
#include "trireme/shard/optimizer_bytes.h"
#include "trireme/shard/rounded_bits.h"
#include "trireme/shard/rounding_kernel.h"

namespace trireme {

namespace {

void check(const at::Tensor& from, const at::Tensor& to, int64_t first_element) {
  TRIREME_ASSERT(from.scalar_type() == at::kFloat && to.scalar_type() == at::kBFloat16, "got ",
                 from.scalar_type(), " to ", to.scalar_type(), ", expected fp32 to bf16");
  TRIREME_ASSERT(from.numel() == to.numel() && from.device() == to.device(), "got ", from.numel(),
                 " elements on ", from.device(), " and ", to.numel(), " on ", to.device());
  TRIREME_ASSERT(from.is_contiguous() && to.is_contiguous(), "strides ", from.strides(), " and ",
                 to.strides());
  TRIREME_ASSERT(first_element >= 0, "first element: got ", first_element);
}

// The arithmetic of splitmix64.h in int64, whose products and sums keep the same low 64 bits.
int64_t as_signed(uint64_t bits) {
  return static_cast<int64_t>(bits);
}
at::Tensor shift_right(const at::Tensor& x, int bits) {
  return x.bitwise_right_shift(bits).bitwise_and(as_signed(~uint64_t{0} >> bits));
}
at::Tensor splitmix64_of(const at::Tensor& states) {
  at::Tensor x = states.add(as_signed(kSplitmix64Step));
  x = x.bitwise_xor(shift_right(x, 30)).mul(as_signed(0xbf58476d1ce4e5b9ULL));
  x = x.bitwise_xor(shift_right(x, 27)).mul(as_signed(0x94d049bb133111ebULL));
  return x.bitwise_xor(shift_right(x, 31));
}

// The random 16-bit numbers of elements [first, first + count), int64.
at::Tensor random_numbers(uint64_t key, int64_t first, int64_t count, at::Device device) {
  const int64_t skipped = first % 4, groups = (skipped + count + 3) / 4;
  const uint64_t state = key + static_cast<uint64_t>(first / 4) * kSplitmix64Step;
  const at::Tensor words = splitmix64_of(at::arange(groups, at::TensorOptions(at::kLong).device(device))
                                             .mul(as_signed(kSplitmix64Step))
                                             .add(as_signed(state)));
  const at::Tensor quarters =
      at::stack({words, shift_right(words, 16), shift_right(words, 32), shift_right(words, 48)}, 1);
  return quarters.bitwise_and(0xffff).view({-1}).narrow(0, skipped, count);
}

}  // namespace

void round_stochastically(const at::Tensor& from_fp32, at::Tensor& to_bf16, uint64_t seed, uint64_t stream,
                          int64_t first_element) {
  if (!from_fp32.is_cpu()) return aten::round_stochastically(from_fp32, to_bf16, seed, stream, first_element);
  check(from_fp32, to_bf16, first_element);
  const uint64_t key = rounding_key(seed, stream);
  const auto* from = static_cast<const uint32_t*>(from_fp32.const_data_ptr());
  auto* to = static_cast<uint16_t*>(to_bf16.mutable_data_ptr());
  static const auto round = fastest(&simd_base::round_block, &simd_v3::round_block, &simd_v4::round_block);
  constexpr int64_t kGrain = 1 << 15;
  at::parallel_for(0, from_fp32.numel(), kGrain, [&](int64_t begin, int64_t end) {
    round(from + begin, to + begin, end - begin, key, static_cast<uint64_t>(first_element + begin));
  });
}

namespace aten {

void round_stochastically(const at::Tensor& from_fp32, at::Tensor& to_bf16, uint64_t seed, uint64_t stream,
                          int64_t first_element) {
  const at::NoGradGuard no_grad;
  check(from_fp32, to_bf16, first_element);
  const uint64_t key = rounding_key(seed, stream);
  const at::Tensor from = from_fp32.view({-1}).view(at::kInt), to = to_bf16.view({-1}).view(at::kShort);
  constexpr int64_t kPiece = step_piece_elements(/*on_host=*/false);  // bounds the int64 tensors between
  for (int64_t begin = 0; begin < from.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, from.numel() - begin);
    const at::Tensor bits = from.narrow(0, begin, count).to(at::kLong);
    const at::Tensor magnitude = bits.bitwise_and(0x7fffffff);
    at::Tensor rounded = random_numbers(key, first_element + begin, count, bits.device()).add_(magnitude);
    rounded.clamp_max_(0x7f7fffff);
    rounded = at::where(magnitude.ge(0x7f800000), magnitude, rounded);
    rounded.masked_fill_(magnitude.gt(0x7f800000), 0x7fc00000);
    // With the sign bit set, 16 bits read as a signed number are 2^15 less.
    to.narrow(0, begin, count).copy_(rounded.bitwise_right_shift_(16).sub_(bits.lt(0).to(at::kLong), 0x8000));
  }
}

}  // namespace aten

}  // namespace trireme
