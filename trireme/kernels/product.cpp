#include "trireme/kernels/product.h"

#include <ATen/Context.h>
#include <c10/macros/Export.h>

// Of libtorch's interface, but in a header that its wheel leaves out (ATen/native/mkldnn/Matmul.h):
// result = beta result + alpha a b. Any strides.
namespace at::native {
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                             float alpha);
}  // namespace at::native

namespace trireme {
namespace {

bool fp32_products_in_onednn() {
  static const bool chosen = [] {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && at::hasMKLDNN();
  }();
  return chosen;
}

// Below it a call takes longer than the product.
constexpr int64_t kLeastForOneDnn = int64_t{32} * 32 * 32;

// mkldnn_matmul copies such a factor, which takes as long as its product with few columns.
bool has_gaps(const at::Tensor& a_Tk) {
  return !a_Tk.is_contiguous() && !a_Tk.t().is_contiguous();
}
constexpr int64_t kFewColumns = 256;

bool in_onednn(const at::Tensor& out_Tn, const at::Tensor& a_Tk) {
  return at::globalContext().userEnabledMkldnn() && a_Tk.is_cpu() && a_Tk.scalar_type() == at::kFloat &&
         out_Tn.numel() * a_Tk.size(1) >= kLeastForOneDnn && fp32_products_in_onednn() &&
         !(out_Tn.size(1) <= kFewColumns && has_gaps(a_Tk));
}

}  // namespace

at::Tensor product(const at::Tensor& a_Tk, const at::Tensor& b_kn) {
  at::Tensor out = at::empty({a_Tk.size(0), b_kn.size(1)}, a_Tk.options());
  product_into(out, a_Tk, b_kn);
  return out;
}

void product_into(at::Tensor out_Tn, const at::Tensor& a_Tk, const at::Tensor& b_kn) {
  if (in_onednn(out_Tn, a_Tk))
    at::native::mkldnn_matmul(a_Tk, b_kn, out_Tn, /*beta=*/0, /*alpha=*/1);
  else
    at::mm_out(out_Tn, a_Tk, b_kn);
}

void add_product(const at::Tensor& sum_Tn, const at::Tensor& a_Tk, const at::Tensor& b_kn) {
  if (in_onednn(sum_Tn, a_Tk))
    at::native::mkldnn_matmul(a_Tk, b_kn, sum_Tn, /*beta=*/1, /*alpha=*/1);
  else
    sum_Tn.addmm_(a_Tk, b_kn);
}

}  // namespace trireme
