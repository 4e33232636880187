// Choice of arithmetic by dtype and processor; the two passes are in cpu_flash_forward.cpp and
// cpu_flash_backward.cpp.
#include "trireme/kernels/cpu_flash_attention.h"

#include <ATen/core/grad_mode.h>

#include "trireme/base/error.h"
#include "trireme/device/processor.h"
#include "trireme/kernels/attention_arguments.h"

namespace trireme {

int attention_threads() {
  return at::in_parallel_region() ? 1 : at::get_num_threads();
}

CpuFlashAttention::CpuFlashAttention(at::ScalarType dtype)
    : CpuFlashAttention(dtype, dtype == at::kBFloat16 ? processor_bf16_units() : std::nullopt,
                        cpu_rounds_to_bf16()
                            ? simd_v4_bf16::kTileMath
                            : *fastest(&simd_base::kTileMath, &simd_v3::kTileMath, &simd_v4::kTileMath)) {}

CpuFlashAttention::CpuFlashAttention(at::ScalarType dtype, std::optional<Bf16Units> units,
                                     const TileMath& math)
    : dtype_(dtype), units_(units), math_(math) {
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    throw ConfigError(cat("attention kernel 'flash' on the CPU: got ", dtype,
                          ", expected fp32, bf16 or fp16; use 'reference'"));
  TRIREME_ASSERT(!units || dtype == at::kBFloat16, "bf16 products of ", dtype, " inputs");
}

std::string CpuFlashAttention::name() const {
  const char* products = !units_                             ? "fp32 products"
                         : *units_ == Bf16Units::amx         ? "bf16 products on AMX"
                         : *units_ == Bf16Units::avx512_bf16 ? "bf16 products on AVX512-BF16"
                                                             : "bf16 products in loops";
  return cat("flash (CPU, ", products, ", ", math_.instructions, " softmax)");
}

void CpuFlashAttention::check_call(const at::Tensor& q, const AttentionSpec& spec) const {
  TRIREME_ASSERT(q.scalar_type() == dtype_ && q.device().is_cpu(), "this kernel is for ", dtype_,
                 " on the CPU, got ", q.scalar_type(), " on ", q.device());
  TRIREME_ASSERT(spec.scores.scale > 0, "attention's scale is ", spec.scores.scale, ", expected one above 0");
  TRIREME_ASSERT(spec.keys->sparse.block_tokens % kPanel == 0, "sparse blocks of ",
                 spec.keys->sparse.block_tokens, " tokens, expected a multiple of ", kPanel);
}

AttentionOutput CpuFlashAttention::forward(const at::Tensor& q_in, const at::Tensor& k_in,
                                           const at::Tensor& v_in, const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention(q_in, k_in, v_in, spec);
  check_call(q_in, spec);
  const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                   v = with_contiguous_rows(v_in);
  if (sizes.empty()) return output_without_keys(q, spec);
  AttentionOutput out{
      at::empty(q.sizes(), q.options().dtype(result_dtype(q, spec))),
      at::empty({sizes.batch, sizes.query_heads, sizes.queries}, q.options().dtype(at::kFloat))};
  if (units_)
    forward_in<at::BFloat16, at::BFloat16>(q, k, v, spec, out);
  else if (dtype_ == at::kFloat)
    forward_in<float, float>(q, k, v, spec, out);
  else if (dtype_ == at::kBFloat16)
    forward_in<at::BFloat16, float>(q, k, v, spec, out);
  else
    forward_in<at::Half, float>(q, k, v, spec, out);
  return out;
}

AttentionGradients CpuFlashAttention::backward(const at::Tensor& do_in, const at::Tensor& q_in,
                                               const at::Tensor& k_in, const at::Tensor& v_in,
                                               const AttentionOutput& saved_in, const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention_backward(do_in, q_in, k_in, v_in, saved_in, spec);
  check_call(q_in, spec);
  const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                   v = with_contiguous_rows(v_in);
  const at::Tensor d_o = with_contiguous_rows(do_in);
  const AttentionOutput saved{with_contiguous_rows(saved_in.o), saved_in.lse};
  if (sizes.empty()) return no_gradients(q, k, spec);
  const auto options = q.options().dtype(result_dtype(q, spec));
  AttentionGradients gradients{at::empty(q.sizes(), options), at::empty(k.sizes(), options),
                               at::empty(v.sizes(), options)};
  if (units_)
    backward_in<at::BFloat16, at::BFloat16>(d_o, q, k, v, saved, spec, gradients);
  else if (dtype_ == at::kFloat)
    backward_in<float, float>(d_o, q, k, v, saved, spec, gradients);
  else if (dtype_ == at::kBFloat16)
    backward_in<at::BFloat16, float>(d_o, q, k, v, saved, spec, gradients);
  else
    backward_in<at::Half, float>(d_o, q, k, v, saved, spec, gradients);
  return gradients;
}

}  // namespace trireme
