#include "trireme/kernels/token_ops_gpu.h"

#include <c10/cuda/CUDAException.h>

#include "trireme/kernels/activation_kernel.h"
#include "trireme/kernels/cross_entropy_kernel.h"
#include "trireme/kernels/gpu_stream.h"
#include "trireme/kernels/norm_kernel.h"
#include "trireme/kernels/rotary_kernel.h"

namespace trireme::gpu {
namespace {

// Whether the rows lie on one CUDA device, share a format that kernels know, `result` too, the dtype of a
// tensor that is yet to be made, and have contiguous last dimensions.
bool takes_rows(std::initializer_list<at::Tensor> rows, std::optional<at::ScalarType> result = {}) {
  const at::Tensor& x = *rows.begin();
  return (!result || *result == x.scalar_type()) &&
         std::all_of(rows.begin(), rows.end(), [&](const at::Tensor& other) {
           const bool inner = other.stride(-1) == 1 && (other.dim() < 3 || other.stride(1) == other.size(2));
           return other.is_cuda() && other.device() == x.device() && kernels_know(other.scalar_type()) &&
                  other.scalar_type() == x.scalar_type() && inner;
         });
}

// Of one dtype, which need not be that of the rows.
bool takes_vectors(const at::Tensor& x, std::initializer_list<at::Tensor> vectors) {
  const at::Tensor& first = *vectors.begin();
  return std::all_of(vectors.begin(), vectors.end(), [&](const at::Tensor& vector) {
    return vector.device() == x.device() && kernels_know(vector.scalar_type()) && vector.is_contiguous() &&
           vector.scalar_type() == first.scalar_type();
  });
}
bool takes_sums(const at::Tensor& x, std::initializer_list<at::Tensor> sums) {
  return takes_vectors(x, sums) && sums.begin()->scalar_type() == at::kFloat;
}

GpuRows rows_of(const at::Tensor& x) {
  return {x.data_ptr(), x.stride(0)};
}

int multiprocessors(const at::Tensor& x) {
  int count = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, x.device().index()));
  return count;
}

NormKernel norm_of(NormKind kind, const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias,
                   double eps, bool adds_one = false) {
  return {.kind = kind,
          .number = number_of(x_TM),
          .rows = x_TM.size(0),
          .width = x_TM.size(1),
          .x = rows_of(x_TM),
          .weight = weight.const_data_ptr(),
          .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
          .weight_number = number_of(weight),
          .adds_one = adds_one,
          .eps = static_cast<float>(eps),
          .multiprocessors = multiprocessors(x_TM)};
}

at::Tensor norm(const NormKernel& kernel, const at::Tensor& x_TM) {
  at::Tensor y_TM = at::empty(x_TM.sizes(), x_TM.options());
  on_stream(x_TM, [&](void* stream) { launch_norm(kernel, rows_of(y_TM), stream); });
  return y_TM;
}

RotaryKernel kernel_of(const at::Tensor& from_TND, const RotaryHeads& rotary, const at::Tensor& to_TND) {
  RotaryKernel kernel;
  kernel.number = number_of(from_TND);
  kernel.tokens = from_TND.size(0);
  kernel.heads = from_TND.size(1);
  kernel.query_heads = rotary.query_heads;
  kernel.rotated_heads = rotary.rotated_heads;
  kernel.head_dim = from_TND.size(2);
  kernel.turning_pairs = rotary.cos.size(1);
  kernel.from = rows_of(from_TND);
  kernel.to = rows_of(to_TND);
  kernel.cos = rotary.cos.const_data_ptr<float>();
  kernel.sin = rotary.sin.const_data_ptr<float>();
  kernel.table_rows = rotary.cos.size(0);
  kernel.first_row = rotary.first_row;
  if (rotary.q_norm.defined()) {
    kernel.q_norm = rotary.q_norm.const_data_ptr();
    kernel.k_norm = rotary.k_norm.const_data_ptr();
    kernel.norm_number = number_of(rotary.q_norm);
    kernel.norms_add_one = rotary.norms_add_one;
  }
  kernel.eps = static_cast<float>(rotary.norm_eps);
  kernel.multiprocessors = multiprocessors(from_TND);
  return kernel;
}

bool takes_rotation(const at::Tensor& from_TND, const RotaryHeads& rotary, const at::Tensor& to_TND) {
  return takes_rows({from_TND, to_TND}) && takes_sums(from_TND, {rotary.cos, rotary.sin}) &&
         knows_rotary_head(from_TND.size(2), rotary.cos.size(1)) &&
         from_TND.size(0) * from_TND.size(1) < kTooManyForKernels &&
         rotary.cos.size(0) < kTooManyForKernels &&
         (!rotary.q_norm.defined() || takes_vectors(from_TND, {rotary.q_norm, rotary.k_norm}));
}

}  // namespace

std::optional<at::Tensor> rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                                   at::ScalarType out_dtype, bool adds_one) {
  if (!takes_rows({x_TM}, out_dtype) || !takes_vectors(x_TM, {weight})) return {};
  return norm(norm_of(NormKind::rms, x_TM, weight, {}, eps, adds_one), x_TM);
}

bool rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight, bool adds_one) {
  if (!takes_rows({x_TM, dy_TM, dx_TM}) || !takes_vectors(x_TM, {weight}) || !takes_sums(x_TM, {dweight}))
    return false;
  const NormKernel kernel = norm_of(NormKind::rms, x_TM, weight, {}, eps, adds_one);
  const at::Tensor partial =
      at::empty({norm_backward_blocks(kernel.rows, kernel.width, kernel.multiprocessors), x_TM.size(1)},
                dweight.options());
  on_stream(x_TM, [&](void* stream) {
    launch_norm_backward(kernel, rows_of(dy_TM), rows_of(dx_TM), partial.data_ptr<float>(),
                         dweight.data_ptr<float>(), nullptr, stream);
  });
  return true;
}

std::optional<at::Tensor> layer_norm(const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias,
                                     double eps, at::ScalarType out_dtype) {
  if (!takes_rows({x_TM}, out_dtype) || !takes_vectors(x_TM, {weight, bias})) return {};
  return norm(norm_of(NormKind::layer, x_TM, weight, bias, eps), x_TM);
}

std::optional<at::Tensor> layer_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM,
                                              const at::Tensor& weight, double eps, at::ScalarType out_dtype,
                                              at::Tensor& dweight, at::Tensor& dbias) {
  if (!takes_rows({x_TM, dy_TM}, out_dtype) || !takes_vectors(x_TM, {weight}) ||
      !takes_sums(x_TM, {dweight, dbias}))
    return {};
  const NormKernel kernel = norm_of(NormKind::layer, x_TM, weight, {}, eps);
  const at::Tensor partial =
      at::empty({norm_backward_blocks(kernel.rows, kernel.width, kernel.multiprocessors), 2 * x_TM.size(1)},
                dweight.options());
  at::Tensor dx_TM = at::empty(x_TM.sizes(), x_TM.options());
  on_stream(x_TM, [&](void* stream) {
    launch_norm_backward(kernel, rows_of(dy_TM), rows_of(dx_TM), partial.data_ptr<float>(),
                         dweight.data_ptr<float>(), dbias.data_ptr<float>(), stream);
  });
  return dx_TM;
}

bool rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, const at::Tensor& to_TND) {
  if (!takes_rotation(from_TND, rotary, to_TND)) return false;
  const RotaryKernel kernel = kernel_of(from_TND, rotary, to_TND);
  on_stream(from_TND, [&](void* stream) { launch_rotary(kernel, stream); });
  return true;
}

bool rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, const at::Tensor& to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm) {
  const bool norms = rotary.q_norm.defined();
  if (!takes_rotation(from_TND, rotary, to_TND)) return false;
  if (norms && !(takes_rows({from_TND, before_TND}) && takes_sums(from_TND, {dq_norm, dk_norm})))
    return false;
  RotaryKernel kernel = kernel_of(from_TND, rotary, to_TND);
  at::Tensor partial;
  if (norms) {
    kernel.before = rows_of(before_TND);
    partial = at::empty({rotary_partial_rows(kernel), 2, from_TND.size(2)}, dq_norm.options());
  }
  on_stream(from_TND, [&](void* stream) {
    launch_rotary_backward(kernel, norms ? partial.data_ptr<float>() : nullptr,
                           norms ? dq_norm.data_ptr<float>() : nullptr,
                           norms ? dk_norm.data_ptr<float>() : nullptr, stream);
  });
  return true;
}

std::optional<at::Tensor> glu(GluGate gate, const at::Tensor& gate_up) {
  if (!takes_rows({gate_up})) return {};
  const int64_t T = gate_up.size(0), I = gate_up.size(1) / 2;
  at::Tensor act = at::empty({T, I}, gate_up.options());
  on_stream(gate_up, [&](void* stream) {
    launch_glu(gate, {number_of(gate_up), T, I}, rows_of(gate_up), rows_of(act), stream);
  });
  return act;
}

std::optional<at::Tensor> glu_backward(GluGate gate, const at::Tensor& dact, const at::Tensor& gate_up) {
  if (!takes_rows({gate_up, dact})) return {};
  const int64_t T = gate_up.size(0), I = gate_up.size(1) / 2;
  at::Tensor act = at::empty({T, I}, gate_up.options());
  on_stream(gate_up, [&](void* stream) {
    launch_glu_backward(gate, {number_of(gate_up), T, I}, rows_of(dact), rows_of(gate_up), rows_of(act),
                        stream);
  });
  return act;
}

bool exact_gelu_backward(const at::Tensor& dact, const at::Tensor& x) {
  if (x.dim() != 2 || !takes_rows({x, dact})) return false;
  on_stream(x, [&](void* stream) {
    launch_exact_gelu_backward({number_of(x), x.size(0), x.size(1)}, rows_of(dact), rows_of(x), stream);
  });
  return true;
}

bool cross_entropy(const at::Tensor& logits_TV, const at::Tensor& targets, const at::Tensor& loss,
                   std::optional<double> scale, double cap) {
  const bool counted = targets.device() == logits_TV.device() && targets.scalar_type() == at::kLong &&
                       targets.is_contiguous() && logits_TV.size(1) < kTooManyForKernels;
  if (!takes_rows({logits_TV}) || !takes_sums(logits_TV, {loss}) || !counted) return false;
  const auto factor = scale ? std::optional<float>(static_cast<float>(*scale)) : std::nullopt;
  on_stream(logits_TV, [&](void* stream) {
    launch_cross_entropy({number_of(logits_TV), logits_TV.size(0), logits_TV.size(1)}, rows_of(logits_TV),
                         targets.const_data_ptr<int64_t>(), loss.data_ptr<float>(), factor, stream,
                         static_cast<float>(cap));
  });
  return true;
}

}  // namespace trireme::gpu
