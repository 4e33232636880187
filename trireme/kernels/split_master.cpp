#include "trireme/kernels/split_master.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/kernels/split_master_bytes.h"
#include "trireme/kernels/split_master_kernel.h"

namespace trireme {
namespace {

constexpr int64_t kGrain = int64_t{1} << 15;

void check(const at::Tensor& fp32, const at::Tensor& halves, at::ScalarType dtype) {
  TRIREME_ASSERT(fp32.scalar_type() == at::kFloat && halves.scalar_type() == dtype, "got ",
                 fp32.scalar_type(), " and ", halves.scalar_type());
  TRIREME_ASSERT(fp32.dim() == 1 && fp32.sizes() == halves.sizes() && fp32.device() == halves.device(),
                 "got ", fp32.sizes(), " on ", fp32.device(), " and ", halves.sizes(), " on ",
                 halves.device());
  TRIREME_ASSERT(fp32.is_contiguous() && halves.is_contiguous(), "strides ", fp32.strides(), " and ",
                 halves.strides());
}

template <typename Bits>
const Bits* bits_of(const at::Tensor& tensor) {
  return static_cast<const Bits*>(tensor.const_data_ptr());
}
template <typename Bits>
Bits* bits_to(const at::Tensor& tensor) {
  return static_cast<Bits*>(tensor.mutable_data_ptr());
}

// Other devices, in ATen's operations, a piece at a time.
template <typename Work>
void in_pieces(int64_t elements, const Work& work) {
  for (int64_t begin = 0; begin < elements; begin += kSplitPiece_elements)
    work(begin, std::min(kSplitPiece_elements, elements - begin));
}
at::Tensor bits_of_values(const at::Tensor& masters) {
  const at::Tensor bits = masters.view(at::kInt);
  const at::Tensor keeps = bits.bitwise_and(0x7fff0000).eq_(0x7fff0000);
  return bits.add(keeps.sub_(1).mul_(-0x8000)).bitwise_right_shift_(16);
}

}  // namespace

void round_masters(const at::Tensor& from, const at::Tensor& to) {
  if (from.scalar_type() == to.scalar_type() || to.scalar_type() != at::kBFloat16) {
    to.copy_(from);
    return;
  }
  if (from.scalar_type() != at::kFloat) {
    in_pieces(from.numel(), [&](int64_t begin, int64_t count) {
      round_masters(from.narrow(0, begin, count).to(at::kFloat), to.narrow(0, begin, count));
    });
    return;
  }
  check(from, to, at::kBFloat16);
  if (!from.is_cpu()) {
    in_pieces(from.numel(), [&](int64_t begin, int64_t count) {
      to.narrow(0, begin, count).view(at::kShort).copy_(bits_of_values(from.narrow(0, begin, count)));
    });
    return;
  }
  static const auto round =
      fastest(&simd_base::round_masters, &simd_v3::round_masters, &simd_v4::round_masters);
  const auto* bits = bits_of<uint32_t>(from);
  auto* values = bits_to<uint16_t>(to);
  at::parallel_for(0, from.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { round(bits + begin, values + begin, end - begin); });
}

void split_masters(const at::Tensor& masters, const at::Tensor& values, const at::Tensor& low) {
  check(masters, values, at::kBFloat16);
  check(masters, low, at::kShort);
  if (!masters.is_cpu()) {
    in_pieces(masters.numel(), [&](int64_t begin, int64_t count) {
      const at::Tensor piece = masters.narrow(0, begin, count);
      values.narrow(0, begin, count).view(at::kShort).copy_(bits_of_values(piece));
      low.narrow(0, begin, count).copy_(piece.view(at::kInt));
    });
    return;
  }
  static const auto split =
      fastest(&simd_base::split_masters, &simd_v3::split_masters, &simd_v4::split_masters);
  const auto* bits = bits_of<uint32_t>(masters);
  auto *to_values = bits_to<uint16_t>(values), *to_low = bits_to<uint16_t>(low);
  at::parallel_for(0, masters.numel(), kGrain, [&](int64_t begin, int64_t end) {
    split(bits + begin, to_values + begin, to_low + begin, end - begin);
  });
}

void join_masters(const at::Tensor& values, const at::Tensor& low, const at::Tensor& masters) {
  check(masters, values, at::kBFloat16);
  check(masters, low, at::kShort);
  if (!masters.is_cpu()) {
    in_pieces(masters.numel(), [&](int64_t begin, int64_t count) {
      const at::Tensor high = values.narrow(0, begin, count).view(at::kShort).to(at::kInt);
      const at::Tensor rest = low.narrow(0, begin, count).to(at::kInt);
      const at::Tensor keeps = high.bitwise_and(0x7fff).eq_(0x7fff);
      // A negative `rest` has its highest bit set.
      high.add_(rest.lt(0).to(at::kInt).mul_(keeps.sub_(1)));
      masters.narrow(0, begin, count)
          .view(at::kInt)
          .copy_(high.bitwise_left_shift_(16).bitwise_or_(rest.bitwise_and(0xffff)));
    });
    return;
  }
  static const auto join = fastest(&simd_base::join_masters, &simd_v3::join_masters, &simd_v4::join_masters);
  const auto *from_values = bits_of<uint16_t>(values), *from_low = bits_of<uint16_t>(low);
  auto* bits = bits_to<uint32_t>(masters);
  at::parallel_for(0, masters.numel(), kGrain, [&](int64_t begin, int64_t end) {
    join(from_values + begin, from_low + begin, bits + begin, end - begin);
  });
}

}  // namespace trireme
