#include "trireme/measure/product_rates.h"

#include <algorithm>

#include "trireme/forecast/tile_rules.h"
#include "trireme/kernels/linear.h"
#include "trireme/measure/rate_rounds.h"

namespace trireme {
namespace {

// Random values, on which a GPU's clock depends; a few are repeated, for drawing them takes long.
at::Tensor random_values(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  constexpr int64_t kDrawn = (int64_t{1} << 16) + 7;
  const int64_t count = rows * columns;
  return at::randn({kDrawn}, options)
      .repeat({(count + kDrawn - 1) / kDrawn})
      .narrow(0, 0, count)
      .view({rows, columns});
}

// [n, k] with its gradient, and a tile of T rows on both sides.
struct TimedProduct {
  at::Tensor weight_nk, gradient_nk, x_Tk, y_Tn, dx_Tk;

  TimedProduct(int64_t rows, int64_t k, int64_t n, const at::TensorOptions& options)
      : weight_nk(random_values(n, k, options)),
        gradient_nk(at::zeros({n, k}, options.dtype(at::kFloat))),
        x_Tk(random_values(rows, k, options)),
        y_Tn(random_values(rows, n, options)),
        dx_Tk(at::empty({rows, k}, options)) {}
  // Of one of its three products.
  double flops() const {
    return 2 * static_cast<double>(x_Tk.size(0)) * static_cast<double>(weight_nk.numel());
  }
  void forward() { linear_into(y_Tn, x_Tk, weight_nk, {}); }
  void d_input() { linear_backward_into(dx_Tk, y_Tn, weight_nk); }
  void d_weight() {
    at::Tensor no_bias;
    add_linear_gradient(gradient_nk, no_bias, y_Tn, x_Tk, SumState::begun);
  }
};

struct ProductSeconds {
  double matmul = 0, weight_gradient = 0;  // of all products of their kind
  double flops = 0;                        // of the weight gradients; of the others twice that
};

ProductSeconds time_products(const CallTimer& timer, std::vector<TimedProduct>& products) {
  std::vector<std::function<void()>> calls;
  ProductSeconds sum;
  for (TimedProduct& product : products) {
    calls.insert(calls.end(),
                 {[&] { product.forward(); }, [&] { product.d_input(); }, [&] { product.d_weight(); }});
    sum.flops += product.flops();
  }
  const std::vector<double> seconds = timer.seconds_in_turns(calls);
  for (size_t i = 0; i < seconds.size(); ++i) (i % 3 == 2 ? sum.weight_gradient : sum.matmul) += seconds[i];
  return sum;
}

class ProductTable {
 public:
  ProductTable(const CallTimer& timer, at::ScalarType dtype) : timer_(timer) {
    options_ = at::TensorOptions(timer.device()).dtype(dtype);
  }

  // Sides [k, n]. Beside a first point, adds nothing that would take too long.
  void measure(int64_t least, int64_t rows, const std::vector<std::pair<int64_t, int64_t>>& sides,
               RateTable& matmul, RateTable& weight_gradient) {
    double flops = 0;
    for (const auto& [k, n] : sides) flops += 6 * static_cast<double>(rows * k * n);
    if (!matmul.points.empty() && flops / best_ > kLongestPoint * timer_.seconds_of_each()) return;
    std::vector<TimedProduct> products;
    products.reserve(sides.size());
    for (const auto& [k, n] : sides) products.emplace_back(rows, k, n, options_);
    const ProductSeconds seconds = time_products(timer_, products);
    const auto size = static_cast<double>(least), width = static_cast<double>(rows);
    matmul.points.push_back({size, width, 2 * seconds.flops / seconds.matmul});
    weight_gradient.points.push_back({size, width, seconds.flops / seconds.weight_gradient});
    best_ = std::max(best_, matmul.points.back().per_second);
  }

 private:
  const CallTimer& timer_;
  at::TensorOptions options_;
  double best_ = 0;  // of products so far, FLOP/s
};

}  // namespace

void measure_product_rates(const CallTimer& timer, at::ScalarType dtype, Rates& rates) {
  ProductTable table(timer, dtype);
  for (const int64_t side : {64, 128, 256, 512, 1024, 2048, 4096})
    for (const int64_t rows : {64, 256, 1024, 4096}) {
      // q|k|v with half as many key/value heads, out, gate|up and down of 2.75 times the width.
      const int64_t wide = 11 * side / 4;
      table.measure(side, rows, {{side, 2 * side}, {side, side}, {side, 2 * wide}, {wide, side}},
                    rates[WorkKind::matmul], rates[WorkKind::weight_gradient]);
    }
  // As wide as a vocabulary may be: a GPU's tile of few rows would ask for a matrix beyond its memory.
  constexpr int64_t kWidestHead_columns = int64_t{1} << 17;
  const int64_t logits_elements = (timer.device().is_cpu() ? kCpuLogitsTile_bytes : kGpuTile_bytes) / 4;
  for (const int64_t side : {64, 256, 512, 1024, 4096})
    for (const int64_t rows : {128, 512, 2048})
      table.measure(side, rows, {{side, std::min(logits_elements / rows, kWidestHead_columns)}},
                    rates[WorkKind::head_matmul], rates[WorkKind::head_weight_gradient]);
}

}  // namespace trireme
