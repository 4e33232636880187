// Chooses, for the tensors' device and dtypes, the implementation of each token-wise operation, and spreads
// the CPU's row kernels over threads. Each value is read and written once.
#include "trireme/kernels/token_ops.h"

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/kernels/token_kernels.h"
#include "trireme/kernels/token_ops_gpu.h"

namespace trireme {
namespace {

const TokenKernels& kernels() {
  static const TokenKernels* const chosen =
      fastest(&simd_base::kTokenKernels, &simd_v3::kTokenKernels, &simd_v4::kTokenKernels);
  return *chosen;
}

bool is_fp32(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat;
}

// The loops know fp32 beside one of the 16-bit types. `result`: the dtype of a tensor that is yet to be made.
bool fused(std::initializer_list<at::Tensor> tensors, at::ScalarType result = at::kFloat) {
  const auto any = [&](at::ScalarType dtype) {
    return result == dtype || std::any_of(tensors.begin(), tensors.end(),
                                          [&](const at::Tensor& x) { return x.scalar_type() == dtype; });
  };
  const auto known = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  const bool all_known = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    return x.device().is_cpu() && known(x.scalar_type());
  });
  return all_known && known(result) && !(any(at::kBFloat16) && any(at::kHalf));
}

template <typename X>
X* data(const at::Tensor& x) {
  return static_cast<X*>(x.data_ptr());
}

// Calls f with the kernels of the 16-bit type among the tensors.
template <typename F>
void with_kernels(std::initializer_list<at::Tensor> tensors, const F& f) {
  const bool fp16 = std::any_of(tensors.begin(), tensors.end(),
                                [](const at::Tensor& x) { return x.scalar_type() == at::kHalf; });
  if (fp16)
    f(kernels().fp16);
  else
    f(kernels().bf16);
}

// Calls f.template operator()<X, Y>(kernels of x's and y's types).
template <typename F>
void with_row_kernels(const at::Tensor& x, const at::Tensor& y, const F& f) {
  with_kernels({x, y}, [&](const auto& k) {
    if (is_fp32(x))
      is_fp32(y) ? f(k.ff) : f(k.fs);
    else
      is_fp32(y) ? f(k.sf) : f(k.ss);
  });
}

template <typename F>
void with_norm_kernel(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dx, const F& f) {
  with_kernels({dy, x, dx}, [&](const auto& k) {
    const auto by_dx = [&](const auto& fp32, const auto& narrow) { is_fp32(dx) ? f(fp32) : f(narrow); };
    if (is_fp32(dy))
      is_fp32(x) ? by_dx(k.norm_fff, k.norm_ffs) : by_dx(k.norm_fsf, k.norm_fss);
    else
      is_fp32(x) ? by_dx(k.norm_sff, k.norm_sfs) : by_dx(k.norm_ssf, k.norm_sss);
  });
}

// The same for an operation on tensors of one type.
template <typename F>
void with_tile_kernels(const at::Tensor& x, const F& f) {
  with_kernels({x}, [&](const auto& k) { is_fp32(x) ? f(k.f) : f(k.s); });
}

// Runs body(task, begin, end) over equal shares of the rows, one a thread; partial sums by task are then
// added in task order, so that a result depends on the number of threads only.
template <typename F>
void for_row_shares(int64_t rows, int64_t tasks, const F& body) {
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task)
      body(task, rows * task / tasks, rows * (task + 1) / tasks);
  });
}
int64_t share_count(int64_t rows) {
  return std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), rows));
}

template <typename F>
void for_rows(int64_t rows, const F& body) {
  for_row_shares(rows, share_count(rows), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

RotaryRow rotary_row(const RotaryHeads& rotary, int64_t heads, int64_t head_dim, const at::Tensor& q_norm,
                     const at::Tensor& k_norm) {
  RotaryRow row;
  row.heads = heads;
  row.query_heads = rotary.query_heads;
  row.rotated_heads = rotary.rotated_heads;
  row.head_dim = head_dim;
  row.turning_pairs = rotary.cos.size(1);
  row.q_norm = q_norm.defined() ? q_norm.const_data_ptr<float>() : nullptr;
  row.k_norm = k_norm.defined() ? k_norm.const_data_ptr<float>() : nullptr;
  row.eps = static_cast<float>(rotary.norm_eps);
  return row;
}

at::Tensor as_float(const at::Tensor& x) {
  return x.defined() ? x.to(at::kFloat).contiguous() : x;
}

// Rows of the last dimensions are contiguous; rows themselves may lie apart.
void check_rows(const at::Tensor& x) {
  TRIREME_ASSERT(x.stride(-1) == 1 && (x.dim() < 3 || x.stride(1) == x.size(2)), "sizes ", x.sizes(),
                 " strides ", x.strides());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps, at::ScalarType out_dtype,
                    bool adds_one) {
  if (const auto y = gpu::rms_norm(x_TM, weight, eps, out_dtype, adds_one)) return *y;
  if (!fused({x_TM}, out_dtype)) return aten::rms_norm(x_TM, weight, eps, out_dtype, adds_one);
  at::Tensor y = at::empty(x_TM.sizes(), x_TM.options().dtype(out_dtype));
  check_rows(x_TM);
  const at::Tensor w = as_float(norm_factor(weight, adds_one));
  with_row_kernels(x_TM, y, [&]<typename X, typename Y>(const RowKernels<X, Y>& k) {
    const X* x = data<X>(x_TM);
    Y* out = data<Y>(y);
    const int64_t M = x_TM.size(1), stride = x_TM.stride(0);
    for_rows(x_TM.size(0), [&](int64_t t) {
      k.rms_norm(x + t * stride, w.const_data_ptr<float>(), static_cast<float>(eps), out + t * M, M);
    });
  });
  return y;
}

void rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight, bool adds_one) {
  if (gpu::rms_norm_backward(dy_TM, x_TM, weight, eps, dx_TM, dweight, adds_one)) return;
  if (!fused({dy_TM, x_TM, dx_TM, dweight}))
    return aten::rms_norm_backward(dy_TM, x_TM, weight, eps, dx_TM, dweight, adds_one);
  check_rows(dy_TM);
  check_rows(x_TM);
  check_rows(dx_TM);
  const at::Tensor w = as_float(norm_factor(weight, adds_one));
  const int64_t rows = x_TM.size(0), M = x_TM.size(1), tasks = share_count(rows);
  const at::Tensor partial = at::zeros({tasks, M}, dweight.options());
  with_norm_kernel(dy_TM, x_TM, dx_TM,
                   [&]<typename Dy, typename X, typename Dx>(const NormBackwardKernel<Dy, X, Dx>& k) {
                     for_row_shares(rows, tasks, [&](int64_t task, int64_t begin, int64_t end) {
                       for (int64_t t = begin; t < end; ++t)
                         k.run(data<Dy>(dy_TM) + t * dy_TM.stride(0), data<X>(x_TM) + t * x_TM.stride(0),
                               w.const_data_ptr<float>(), static_cast<float>(eps),
                               data<Dx>(dx_TM) + t * dx_TM.stride(0), data<float>(partial) + task * M, M);
                     });
                   });
  for (int64_t task = 0; task < tasks; ++task) dweight.add_(partial.select(0, task));
}

void rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, at::Tensor to_TND) {
  const int64_t pairs = rotary.pairs_of(from_TND.size(2)), table_rows = rotary.cos.size(0);
  if (gpu::rotate_heads(from_TND, rotary, to_TND)) return;
  if (!fused({from_TND, to_TND})) return aten::rotate_heads(from_TND, rotary, to_TND);
  check_rows(from_TND);
  check_rows(to_TND);
  const at::Tensor q_norm = as_float(norm_factor(rotary.q_norm, rotary.norms_add_one)),
                   k_norm = as_float(norm_factor(rotary.k_norm, rotary.norms_add_one));
  const float *cos = rotary.cos.const_data_ptr<float>(), *sin = rotary.sin.const_data_ptr<float>();
  with_row_kernels(from_TND, to_TND, [&]<typename X, typename Y>(const RowKernels<X, Y>& k) {
    for_rows(from_TND.size(0), [&](int64_t t) {
      RotaryRow row = rotary_row(rotary, from_TND.size(1), from_TND.size(2), q_norm, k_norm);
      const int64_t position = (rotary.first_row + t) % table_rows;
      row.cos = cos + position * pairs;
      row.sin = sin + position * pairs;
      k.rotate(data<X>(from_TND) + t * from_TND.stride(0), row, data<Y>(to_TND) + t * to_TND.stride(0));
    });
  });
}

void rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, at::Tensor to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm) {
  const int64_t D = from_TND.size(2), pairs = rotary.pairs_of(D), table_rows = rotary.cos.size(0);
  if (gpu::rotate_heads_backward(from_TND, rotary, before_TND, to_TND, dq_norm, dk_norm)) return;
  const bool norms = rotary.q_norm.defined();
  if (!fused({from_TND, to_TND}) || (norms && before_TND.scalar_type() != to_TND.scalar_type()))
    return aten::rotate_heads_backward(from_TND, rotary, before_TND, to_TND, dq_norm, dk_norm);
  check_rows(from_TND);
  check_rows(to_TND);
  const at::Tensor q_norm = as_float(norm_factor(rotary.q_norm, rotary.norms_add_one)),
                   k_norm = as_float(norm_factor(rotary.k_norm, rotary.norms_add_one));
  const int64_t rows = from_TND.size(0), tasks = share_count(rows);
  const at::Tensor partial = at::zeros({tasks, 2, D}, rotary.cos.options());
  const float *cos = rotary.cos.const_data_ptr<float>(), *sin = rotary.sin.const_data_ptr<float>();
  with_row_kernels(from_TND, to_TND, [&]<typename X, typename Y>(const RowKernels<X, Y>& k) {
    for_row_shares(rows, tasks, [&](int64_t task, int64_t begin, int64_t end) {
      RotaryRow row = rotary_row(rotary, from_TND.size(1), D, q_norm, k_norm);
      float* sums = data<float>(partial) + task * 2 * D;
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = (rotary.first_row + t) % table_rows;
        row.cos = cos + position * pairs;
        row.sin = sin + position * pairs;
        k.rotate_backward(data<X>(from_TND) + t * from_TND.stride(0), row,
                          norms ? data<Y>(before_TND) + t * before_TND.stride(0) : nullptr,
                          data<Y>(to_TND) + t * to_TND.stride(0), sums, sums + D);
      }
    });
  });
  if (!norms) return;
  for (int64_t task = 0; task < tasks; ++task) {
    dq_norm.add_(partial[task][0]);
    dk_norm.add_(partial[task][1]);
  }
}

at::Tensor glu(GluGate gate, const at::Tensor& gate_up) {
  if (const auto act = gpu::glu(gate, gate_up)) return *act;
  if (!fused({gate_up}) || !gate_up.is_contiguous()) return aten::glu(gate, gate_up);
  const int64_t T = gate_up.size(0), I = gate_up.size(1) / 2;
  at::Tensor act = at::empty({T, I}, gate_up.options());
  with_tile_kernels(gate_up, [&]<typename X>(const TileKernels<X>& k) {
    const GluKernels<X>& row = k.glu(gate);
    for_rows(T, [&](int64_t t) { row.forward(data<X>(gate_up) + t * 2 * I, data<X>(act) + t * I, I); });
  });
  return act;
}

at::Tensor glu_backward(GluGate gate, const at::Tensor& dact, at::Tensor& gate_up) {
  if (const auto act = gpu::glu_backward(gate, dact, gate_up)) return *act;
  if (!fused({dact, gate_up}) || !gate_up.is_contiguous() || !dact.is_contiguous() ||
      dact.scalar_type() != gate_up.scalar_type())
    return aten::glu_backward(gate, dact, gate_up);
  const int64_t T = gate_up.size(0), I = gate_up.size(1) / 2;
  at::Tensor act = at::empty({T, I}, gate_up.options());
  with_tile_kernels(gate_up, [&]<typename X>(const TileKernels<X>& k) {
    const GluKernels<X>& row = k.glu(gate);
    for_rows(T, [&](int64_t t) {
      row.backward(data<X>(dact) + t * I, data<X>(gate_up) + t * 2 * I, data<X>(act) + t * I, I);
    });
  });
  return act;
}

void cross_entropy(at::Tensor& logits_TV, const at::Tensor& targets, at::Tensor& loss,
                   std::optional<double> scale, double cap) {
  if (gpu::cross_entropy(logits_TV, targets, loss, scale, cap)) return;
  if (!fused({logits_TV}) || !logits_TV.is_contiguous())
    return aten::cross_entropy(logits_TV, targets, loss, scale, cap);
  const int64_t V = logits_TV.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  float* losses = loss.data_ptr<float>();
  with_tile_kernels(logits_TV, [&]<typename X>(const TileKernels<X>& k) {
    for_rows(logits_TV.size(0), [&](int64_t t) {
      losses[t] = k.cross_entropy(data<X>(logits_TV) + t * V, target[t], scale.has_value(),
                                  static_cast<float>(scale.value_or(0)), static_cast<float>(cap), V);
    });
  });
}

}  // namespace trireme
