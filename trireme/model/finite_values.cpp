#include "trireme/model/finite_values.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/kernels/split_master.h"

namespace trireme {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Bits are compared, in blocks: compilers make vectors of it, and leave std::isfinite alone. A value is not
// finite if all bits of its exponent are ones.
template <typename Bits>
int64_t first_in(const void* values, Bits exponent, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 4096;
  const auto* bytes = static_cast<const char*>(values);
  const auto not_finite = [&](int64_t i) {
    Bits bits = 0;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    return static_cast<Bits>(bits & exponent) == exponent;
  };
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = std::min(end, block + kBlock);
    Bits any = 0;
    for (int64_t i = block; i < stop; ++i) any |= static_cast<Bits>(not_finite(i));
    if (any == 0) continue;
    for (int64_t i = block; i < stop; ++i)
      if (not_finite(i)) return i;
  }
  return kNone;
}

// `values`: contiguous on the host, of fp32, bf16 or fp16.
int64_t first_in(const at::Tensor& values, int64_t begin, int64_t end) {
  const void* data = values.const_data_ptr();
  if (values.scalar_type() == at::kBFloat16) return first_in<uint16_t>(data, 0x7f80U, begin, end);
  if (values.scalar_type() == at::kHalf) return first_in<uint16_t>(data, 0x7c00U, begin, end);
  return first_in<uint32_t>(data, 0x7f800000U, begin, end);
}

// `look(begin, end)` of parts of [0, elements), on all threads: the smallest of its results.
template <typename Look>
std::optional<int64_t> first_of_parts(int64_t elements, const Look& look) {
  std::atomic<int64_t> first{kNone};
  at::parallel_for(0, elements, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    const int64_t found = look(begin, end);
    int64_t before = first.load();
    while (found < before && !first.compare_exchange_weak(before, found)) {
    }
  });
  return first == kNone ? std::nullopt : std::optional(first.load());
}

}  // namespace

std::optional<int64_t> first_not_finite(const at::Tensor& flat) {
  const bool wide = flat.scalar_type() == at::kDouble;
  const at::Tensor values = flat.to(at::kCPU, wide ? at::kFloat : flat.scalar_type()).contiguous();
  return first_of_parts(values.numel(),
                        [&](int64_t begin, int64_t end) { return first_in(values, begin, end); });
}

std::optional<int64_t> copy_and_check(const at::Tensor& from, const at::Tensor& to) {
  // Of fp64, what fits no fp32 becomes infinite.
  if (from.scalar_type() == at::kDouble) return copy_and_check(from.to(at::kFloat), to);
  constexpr int64_t kBlock = int64_t{1} << 15;  // stays in a core's cache between the two
  return first_of_parts(from.numel(), [&](int64_t begin, int64_t end) {
    int64_t found = kNone;
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t count = std::min(kBlock, end - block);
      if (found == kNone) found = first_in(from, block, block + count);
      round_masters(from.narrow(0, block, count), to.narrow(0, block, count));
    }
    return found;
  });
}

std::optional<float> value_beyond(const at::Tensor& values, at::ScalarType dtype) {
  if (dtype == at::kFloat) return std::nullopt;
  const at::Tensor beyond = values.isfinite().logical_and_(values.to(dtype).isfinite().logical_not_());
  if (!beyond.any().item<bool>()) return std::nullopt;
  return values.masked_select(beyond)[0].item<float>();
}

std::string not_finite_text(const ParameterSpec& spec, int64_t element, double value) {
  const auto dims = spec.shape.size();
  const int64_t row = dims > 1 ? element / spec.shape.back() : element;
  const bool of_matrices = dims == 3 && spec.shape[1] > 1;  // of experts, one below the other
  const int64_t matrix_rows = of_matrices ? spec.shape[1] : 1;
  return cat(of_matrices ? cat("matrix ", row / matrix_rows, ", ") : "", dims > 1 ? "row " : "element ",
             of_matrices ? row % matrix_rows : row, " holds ",
             std::isnan(value) ? "NaN"
             : value > 0       ? "infinity"
                               : "-infinity");
}

std::optional<std::string> not_finite_row(const ParameterSpec& spec, const at::Tensor& values) {
  const at::Tensor flat = values.reshape({-1});
  const auto found = first_not_finite(flat);
  if (!found) return std::nullopt;
  return not_finite_text(spec, *found, flat[*found].item<double>());
}

std::optional<std::string> not_finite_row(const UnitSpec& unit, const at::Tensor& flat) {
  for (const ParameterSpec& spec : unit.parameters)
    if (const auto row = not_finite_row(spec, flat.narrow(0, spec.offset, spec.elements)))
      return cat(spec.name, " (unit ", unit.name, "), ", *row);
  return std::nullopt;
}

}  // namespace trireme
