// Attention of one segment in fp64, and of the inputs' dtype only where it is written: what a fused kernel
// computes. Unlike attention_oracle.h it is given the log-sum-exp and o in backward, as kernels are, and a
// mask as they see it.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/ATen.h>

namespace trireme_test {

// Rows of q, o, do, dq and lse [q, q_end), of k, v, dk and dv [k, k_end).
struct Segment {
  int64_t q, q_end;
  int64_t k, k_end;
};

// Row i of R sees keys [d - left, d + right] with d = i + offset; no value: no bound.
struct SeenBand {
  int64_t offset = 0;
  std::optional<int64_t> left, right;
};

// q, o [N, h, D], k, v [M, k, D], lse [h, N]. A row that sees nothing has o = 0 and lse = infinity.
void forward_segment(const Segment& segment, const SeenBand& band, double scale, const at::Tensor& q,
                     const at::Tensor& k, const at::Tensor& v, const at::Tensor& o, const at::Tensor& lse);

// Every row of dq, dk and dv of the segment is written.
void backward_segment(const Segment& segment, const SeenBand& band, double scale, const at::Tensor& d_o,
                      const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                      const at::Tensor& lse, const at::Tensor& dq, const at::Tensor& dk,
                      const at::Tensor& dv);

// Memory that a kernel is yet to write, as the operators of libtorch allocate theirs; it reads as NaN.
at::Tensor unwritten_like(const at::Tensor& tensor);
at::Tensor unwritten(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace trireme_test
