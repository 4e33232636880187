#include "trireme/model/finite_values.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Bits are compared, in blocks: compilers make vectors of it, and leave std::isfinite alone.
int64_t first_in(const float* values, int64_t begin, int64_t end) {
  constexpr uint32_t kExponent = 0x7f800000U;
  constexpr int64_t kBlock = 4096;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = std::min(end, block + kBlock);
    uint32_t largest = 0;
    for (int64_t i = block; i < stop; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, values + i, sizeof(bits));
      largest |= (bits & kExponent) == kExponent ? 1U : 0U;
    }
    if (largest == 0) continue;
    for (int64_t i = block; i < stop; ++i)
      if (!std::isfinite(values[i])) return i;
  }
  return kNone;
}

}  // namespace

std::optional<int64_t> first_not_finite(const at::Tensor& flat) {
  const at::Tensor values = flat.to(at::kCPU, at::kFloat).contiguous();
  const auto* data = values.const_data_ptr<float>();
  std::atomic<int64_t> first{kNone};
  at::parallel_for(0, values.numel(), int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    const int64_t found = first_in(data, begin, end);
    int64_t before = first.load();
    while (found < before && !first.compare_exchange_weak(before, found)) {
    }
  });
  return first == kNone ? std::nullopt : std::optional(first.load());
}

std::optional<std::string> not_finite_row(const ParameterSpec& spec, const at::Tensor& values) {
  const at::Tensor flat = values.reshape({-1});
  const auto found = first_not_finite(flat);
  if (!found) return std::nullopt;
  const int64_t row_elements = spec.shape.size() > 1 ? spec.elements / spec.shape[0] : 1;
  const auto value = flat[*found].item<double>();
  return cat(spec.shape.size() > 1 ? "row " : "element ", *found / row_elements, " holds ",
             std::isnan(value) ? "NaN"
             : value > 0       ? "infinity"
                               : "-infinity");
}

std::optional<std::string> not_finite_row(const UnitSpec& unit, const at::Tensor& flat) {
  for (const ParameterSpec& spec : unit.parameters)
    if (const auto row = not_finite_row(spec, flat.narrow(0, spec.offset, spec.elements)))
      return cat(spec.name, " (unit ", unit.name, "), ", *row);
  return std::nullopt;
}

}  // namespace trireme
