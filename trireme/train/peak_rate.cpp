#include "trireme/train/peak_rate.h"

#include <algorithm>
#include <chrono>

#include <c10/core/CachingDeviceAllocator.h>

#include "trireme/device/processor.h"

namespace trireme {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double measure_matmul_rate(at::Device device, at::ScalarType dtype, double seconds) {
  const at::NoGradGuard no_grad;
  const int64_t n = device.is_cpu() ? 1024 : 8192;
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  const at::Tensor a = at::ones({n, n}, options), b = at::ones({n, n}, options);
  at::Tensor c = at::empty({n, n}, options);
  const auto multiply = [&] {
    at::mm_out(c, a, b);
    if (!device.is_cpu()) c[0][0].item();  // waits for the device
  };
  multiply();
  double best = 0;
  const double start = now_seconds();
  do {
    const double begin = now_seconds();
    multiply();
    const auto size = static_cast<double>(n);
    best = std::max(best, 2 * size * size * size / (now_seconds() - begin));
  } while (now_seconds() - start < seconds);
  return best;
}

int64_t peak_memory_bytes(at::Device device) {
  if (device.is_cpu()) return peak_resident_bytes();
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes.at(kAll).peak;
}

}  // namespace trireme
