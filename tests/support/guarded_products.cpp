// Products on the guarded device. Those of 16-bit factors are computed in fp32 and rounded, as on a GPU: a
// CPU without instructions for them takes far longer (docs/benchmarks/README.md). What one that libtorch has
// for GPUs alone demands is what CUDA's kernel demands.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "tests/support/guarded_device.h"
#include "tests/support/guarded_streams.h"

namespace trireme::testing {
namespace {

// What cuBLAS demands, and what the CPU's kernels demand of tensors of their own.
void check_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  for (const at::Tensor& x : {a, b, out}) {
    TORCH_CHECK(x.device() == guarded_device(), "a factor or a result of ", x.sizes(), " is on ", x.device(),
                ", expected the guarded device");
    TORCH_CHECK(x.scalar_type() == a.scalar_type(), "factors and result of ", a.scalar_type(), ", ",
                b.scalar_type(), " and ", out.scalar_type(), ", expected one dtype");
  }
  TORCH_CHECK(
      a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && out.sizes().equals({a.size(0), b.size(1)}),
      "factors of ", a.sizes(), " and ", b.sizes(), " into a result of ", out.sizes());
}

// Work in fp32 is on the host, so that it takes none of the device's memory, as cuBLAS does not.
at::Tensor on_host(const at::Tensor& x) {
  const at::Tensor seen = as_cpu_tensor(x);
  return at::isReducedFloatingType(x.scalar_type()) ? seen.to(at::kFloat) : seen;
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  check_product(a, b, out);
  finish_current_stream();
  as_cpu_tensor(out).copy_(at::mm(on_host(a), on_host(b)));
  return out;
}

at::Tensor& add_product(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  finish_current_stream();
  as_cpu_tensor(out).copy_(at::addmm(on_host(self), on_host(a), on_host(b), beta, alpha));
  return out;
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  check_product(a, b, out);
  TORCH_CHECK(self.device() == guarded_device(), "a summand of ", self.sizes(), " is on ", self.device(),
              ", expected the guarded device");
  return add_product(self, a, b, beta, alpha, out);
}

// beta self [n, m] + alpha a [n, k] b [k, m], of 16-bit factors into fp32. The demands are those of
// _addmm_dtype_out_cuda in ATen/native/cuda/Blas.cpp of PyTorch 2.11; that each matrix be dense along one
// dimension, so that cuBLAS takes it without a copy, is ours.
at::Tensor& addmm_dtype_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                            at::ScalarType dtype, const at::Scalar& beta, const at::Scalar& alpha,
                            at::Tensor& out) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "factors of ", a.sizes(), " and ",
              b.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "factors of ", a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(dtype == a.scalar_type() || (dtype == at::kFloat && at::isReducedFloatingType(a.scalar_type())),
              "a result of ", dtype, " of factors of ", a.scalar_type());
  TORCH_CHECK(dtype == out.scalar_type(), "a result of ", dtype, " into ", out.scalar_type());
  TORCH_CHECK(self.scalar_type() == dtype || self.scalar_type() == a.scalar_type(), "a summand of ",
              self.scalar_type());
  for (const at::Tensor& matrix : {a, b, static_cast<const at::Tensor&>(out)})
    TORCH_CHECK(matrix.stride(0) == 1 || matrix.stride(1) == 1, "strides ", matrix.strides());
  return add_product(self, a, b, beta, alpha, out);
}

// a [n, k] b [k, m] of 16-bit factors into fp32, as _mm_dtype_out_cuda there: whatever lies in out.
at::Tensor& mm_dtype_out(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype, at::Tensor& out) {
  return addmm_dtype_out(out, a, b, dtype, /*beta=*/0, /*alpha=*/1, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("mm.out", &mm_out);
  library.impl("addmm.out", &addmm_out);
  library.impl("mm.dtype_out", &mm_dtype_out);
  library.impl("addmm.dtype_out", &addmm_dtype_out);
}

}  // namespace
}  // namespace trireme::testing
