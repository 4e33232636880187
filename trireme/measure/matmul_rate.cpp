#include "trireme/measure/matmul_rate.h"

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/comm/call_time.h"
#include "trireme/kernels/product.h"
#include "trireme/measure/spread.h"

namespace trireme {
namespace {

struct Shape {
  int64_t rows, inner, columns;
  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(columns);
  }
};

// The largest shape comes last.
std::vector<Shape> shapes_of(at::Device device) {
  if (device.is_cpu()) return {{1024, 1024, 1024}, {2048, 512, 1408}, {2048, 2048, 2048}};
  return {{8192, 8192, 8192}, {16384, 4096, 14336}};
}

Spread seconds_of_one(at::Device device, at::ScalarType dtype, const Shape& shape, double seconds) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  // Random values: a GPU's clock falls with the power that changing bits draw, and equal values change none.
  const at::Tensor a = at::randn({shape.rows, shape.inner}, options);
  const at::Tensor b = at::randn({shape.inner, shape.columns}, options);
  at::Tensor c = at::empty({shape.rows, shape.columns}, options);
  const auto multiply = [&] {
    product_into(c, a, b);
    wait_for_stream(device);
  };
  multiply();
  std::vector<double> all;
  const double start = now_seconds();
  do {
    const double begin = now_seconds();
    multiply();
    all.push_back(now_seconds() - begin);
  } while (now_seconds() - start < seconds || all.size() < 3);
  return spread_of(std::move(all));
}

}  // namespace

std::vector<MatmulRate> measure_matmul_rates(at::Device device, at::ScalarType dtype, double seconds) {
  const at::NoGradGuard no_autograd;
  constexpr double kRepetitions = 4, kTooLong = 40;
  std::vector<MatmulRate> rates;
  double best = 0;
  for (const Shape& shape : shapes_of(device)) {
    if (best > 0 && kRepetitions * shape.flops() / best > kTooLong * seconds) continue;
    rates.push_back({shape.rows, shape.inner, shape.columns,
                     shape.flops() / seconds_of_one(device, dtype, shape, seconds).median});
    best = std::max(best, rates.back().flops_per_second);
  }
  return rates;
}

double best_matmul_rate(at::Device device, at::ScalarType dtype, double seconds) {
  double best = 0;
  for (const MatmulRate& rate : measure_matmul_rates(device, dtype, seconds))
    best = std::max(best, rate.flops_per_second);
  return best;
}

double peak_matmul_rate(at::Device device, at::ScalarType dtype, double seconds) {
  const at::NoGradGuard no_autograd;
  double best = 0;
  for (const Shape& shape : shapes_of(device)) {
    constexpr double kRepetitions = 3;
    if (best > 0 && kRepetitions * shape.flops() / best > seconds) continue;
    best = std::max(best, shape.flops() / seconds_of_one(device, dtype, shape, seconds).least);
  }
  return best;
}

}  // namespace trireme
