#include "tests/kernels/local_case.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "trireme/kernels/cpu_flash_attention.h"

#include "tests/kernels/oracle_mask.h"

namespace trireme_test {

using trireme::AttentionGradients;
using trireme::AttentionKernel;
using trireme::AttentionOutput;
using trireme::Causality;
using trireme::CpuFlashAttention;
using trireme::TokenSpans;

std::ostream& operator<<(std::ostream& out, const LocalCase& c) {
  out << "B " << c.batch << " S " << c.tokens << " h/k " << c.kv_of_query.size() << "/" << c.kv_heads
      << " map ";
  for (const int kv : c.kv_of_query) out << kv;
  out << " D " << c.width << " window " << c.window
      << (c.causality == Causality::causal ? " causal" : " full");
  if (!c.sparse.dense())
    out << " blocks of " << c.sparse.block_tokens << " local " << c.sparse.local_blocks << " global "
        << c.sparse.global_blocks << " stride " << c.sparse.stride_blocks;
  if (c.cap > 0) out << " cap " << c.cap;
  for (const std::vector<int64_t>& sample : c.cu_seqlens) out << " documents " << sample.size() - 1;
  return out;
}

LocalInputs draw_inputs(const LocalCase& c, at::ScalarType dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto heads = static_cast<int64_t>(c.kv_of_query.size());
  const auto draw = [&](int64_t count, double spread) {
    return (at::randn({c.batch, c.tokens, count, c.width}, generator, at::kDouble) * spread).to(dtype);
  };
  LocalInputs in{
      draw(heads, c.spread), draw(c.kv_heads, c.spread), draw(c.kv_heads, 1), draw(heads, 1), {}, {}};
  const TokenSpans whole{{0, c.tokens}};
  in.spec.scores.scale = 1.0 / std::sqrt(static_cast<double>(c.width));
  in.spec.keys = trireme::visible_keys(c.mask(), documents_from(c.cu_seqlens), c.tokens, whole, whole);
  in.spec.kv_of_query = c.kv_of_query;
  in.spec.scores.cap = c.cap;
  in.seen = seen_keys(oracle_mask(c.mask(), c.cu_seqlens), c.batch, c.tokens);
  return in;
}

OracleResult truth_of(const LocalInputs& in) {
  return attention_oracle(in.q, in.k, in.v, in.d_o, in.spec.scores.scale, in.seen, in.spec.kv_of_query,
                          at::kDouble, in.spec.scores.cap);
}

OracleResult plain_of(const LocalInputs& in) {
  return plain_low_precision(in.q, in.k, in.v, in.d_o, in.spec.scores.scale, in.seen, in.spec.kv_of_query,
                             in.spec.scores.cap);
}

LocalErrors errors_of(trireme::LocalAttention& kernel, const LocalInputs& in, const OracleResult& truth) {
  const AttentionOutput out = kernel.forward(in.q, in.k, in.v, in.spec);
  const AttentionGradients g = kernel.backward(in.d_o, in.q, in.k, in.v, out, in.spec);
  EXPECT_EQ(out.o.scalar_type(), in.q.scalar_type());
  EXPECT_EQ(out.lse.scalar_type(), in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  EXPECT_EQ(g.dq.scalar_type(), in.q.scalar_type());
  EXPECT_TRUE(out.o.is_contiguous() && g.dq.is_contiguous() && g.dk.is_contiguous() && g.dv.is_contiguous());
  return {relative_error(out.o, truth.o), relative_error(out.lse, truth.lse), relative_error(g.dq, truth.dq),
          relative_error(g.dk, truth.dk), relative_error(g.dv, truth.dv)};
}

void expect_below(const LocalErrors& errors, double bound, double lse_bound) {
  EXPECT_LT(errors.o, bound);
  EXPECT_LT(errors.lse, lse_bound);
  EXPECT_LT(errors.dq, bound);
  EXPECT_LT(errors.dk, bound);
  EXPECT_LT(errors.dv, bound);
}

void expect_low_precision_law(trireme::LocalAttention& kernel, const LocalInputs& in,
                              const OracleResult& truth, const OracleResult& plain) {
  // One rounding of a result near the largest.
  const double floor = in.q.scalar_type() == at::kHalf ? 1e-3 : 8e-3;
  const auto bound = [&](const at::Tensor& of_plain, const at::Tensor& of_truth) {
    return std::max(2 * relative_error(of_plain, of_truth), floor / 2);
  };
  const LocalErrors errors = errors_of(kernel, in, truth);
  EXPECT_LE(errors.o, bound(plain.o, truth.o));
  EXPECT_LE(errors.dq, bound(plain.dq, truth.dq));
  EXPECT_LE(errors.dk, bound(plain.dk, truth.dk));
  EXPECT_LE(errors.dv, bound(plain.dv, truth.dv));
  EXPECT_LT(errors.lse, 1e-3);
}

Kernels cpu_kernels(at::ScalarType dtype) {
  Kernels kernels;
  kernels.push_back(trireme::make_local_attention(AttentionKernel::reference, at::kCPU, dtype));
  kernels.push_back(trireme::make_local_attention(AttentionKernel::flash, at::kCPU, dtype));
  kernels.push_back(std::make_unique<CpuFlashAttention>(dtype, std::nullopt, trireme::simd_base::kTileMath));
  if (trireme::simd_level() != trireme::SimdLevel::base)
    kernels.push_back(std::make_unique<CpuFlashAttention>(dtype, std::nullopt, trireme::simd_v3::kTileMath));
  if (dtype == at::kBFloat16) {
    const trireme::TileMath& math = *trireme::fastest(
        &trireme::simd_base::kTileMath, &trireme::simd_v3::kTileMath, &trireme::simd_v4::kTileMath);
    if (trireme::processor_bf16_units())  // else the flash kernel above is the one with fp32 products
      kernels.push_back(std::make_unique<CpuFlashAttention>(dtype, std::nullopt, math));
    kernels.push_back(std::make_unique<CpuFlashAttention>(dtype, trireme::Bf16Units::loops, math));
  }
  return kernels;
}

}  // namespace trireme_test
