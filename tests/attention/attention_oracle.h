// Causal attention by its definition, in fp64, with dense S x S matrices and masks: the judge of every
// kernel. It shares no code with trireme/attention.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace trireme_test {

struct OracleResult {
  at::Tensor o;    // [B, S, h, D] fp64
  at::Tensor lse;  // [B, h, S] fp64
  at::Tensor dq, dk, dv;
};

// Inputs [B, S, heads, D] of any dtype; window 0 means all earlier tokens.
OracleResult attention_oracle(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& d_o, double scale, int64_t window,
                              const std::vector<int>& kv_of_query);

// The plain implementation in low precision: matrix products of `dtype` inputs with results rounded to it,
// softmax in fp32. What a kernel's error is compared with.
OracleResult plain_low_precision(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& d_o, double scale, int64_t window,
                                 const std::vector<int>& kv_of_query);

// Largest |got - truth| over the largest |truth|.
double relative_error(const at::Tensor& got, const at::Tensor& truth);

}  // namespace trireme_test
