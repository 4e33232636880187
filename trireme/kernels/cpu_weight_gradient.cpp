#include "trireme/kernels/cpu_weight_gradient.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/kernels/pack_panels.h"
#include "trireme/kernels/weight_gradient_blocks.h"

namespace trireme {
namespace {

// Tokens [begin, begin + count) of both factors, in whole groups of 64: what is beyond is zero.
struct TokenBlock {
  int64_t begin, count;
  int64_t depth() const { return round_up(count, kPanel); }
};

void pack_x(const at::Tensor& x_Tk, const TokenBlock& tokens, at::BFloat16* panels) {
  const auto* x = x_Tk.const_data_ptr<at::BFloat16>();
  const int64_t stride = x_Tk.stride(0), k = x_Tk.size(1);
  at::parallel_for(0, tokens.depth() / kPanel, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group)
      pack_rows_panels(x + (tokens.begin + group * kPanel) * stride, stride,
                       std::min(kPanel, tokens.count - group * kPanel), k, group * kPanel, tokens.depth(),
                       panels);
  });
}

// dy's columns [row, row + rows) -> [rows, depth].
void transpose_dy(const at::Tensor& dy_Tn, const TokenBlock& tokens, int64_t row, int64_t rows,
                  at::BFloat16* out) {
  const auto* dy = dy_Tn.const_data_ptr<at::BFloat16>() + tokens.begin * dy_Tn.stride(0) + row;
  transpose_rows(dy, dy_Tn.stride(0), tokens.count, rows, out, tokens.depth());
  for (int64_t i = 0; i < rows && tokens.count < tokens.depth(); ++i)
    std::fill(out + i * tokens.depth() + tokens.count, out + (i + 1) * tokens.depth(), at::BFloat16(0));
}

}  // namespace

void add_weight_gradient(const at::Tensor& gradient_nk, const at::Tensor& dy_Tn, const at::Tensor& x_Tk,
                         SumState state, Bf16Units units) {
  TRIREME_ASSERT(gradient_nk.is_contiguous() && dy_Tn.stride(1) == 1 && x_Tk.stride(1) == 1, "strides ",
                 gradient_nk.strides(), dy_Tn.strides(), x_Tk.strides());
  const int64_t tokens = x_Tk.size(0), k = x_Tk.size(1), n = dy_Tn.size(1);
  TRIREME_ASSERT(tokens > 0 || state == SumState::begun, "no token to write a gradient of");
  const int64_t blocks = (n + kGradientRows - 1) / kGradientRows;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), blocks);
  constexpr int64_t kElement_bytes = sizeof(at::BFloat16);
  at::Tensor panels = at::empty({gradient_panels_bytes(k) / kElement_bytes}, x_Tk.options());
  at::Tensor rows = at::empty({threads, gradient_rows_bytes() / kElement_bytes}, x_Tk.options());
  auto* const packed = panels.mutable_data_ptr<at::BFloat16>();
  float* const gradient = gradient_nk.mutable_data_ptr<float>();
  for (int64_t begin = 0; begin < tokens; begin += kGradientDepth_tokens) {
    const TokenBlock block{begin, std::min(kGradientDepth_tokens, tokens - begin)};
    const int64_t depth = block.depth();
    const bool add = begin > 0 || state == SumState::begun;
    pack_x(x_Tk, block, packed);
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
      PanelProducts products(units);
      for (int64_t thread = first; thread < last; ++thread) {
        auto* const transposed = rows.mutable_data_ptr<at::BFloat16>() + thread * rows.size(1);
        for (int64_t i = blocks * thread / threads; i < blocks * (thread + 1) / threads; ++i) {
          const int64_t row = i * kGradientRows, count = std::min(kGradientRows, n - row);
          transpose_dy(dy_Tn, block, row, count, transposed);
          for (int64_t column = 0; column < k; column += kPanel)
            products.run(count, std::min(kPanel, k - column), depth, transposed, depth,
                         packed + column * depth, gradient + row * k + column, k, add);
        }
      }
    });
  }
}

}  // namespace trireme
