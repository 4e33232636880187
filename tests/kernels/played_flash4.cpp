#include "tests/kernels/played_flash4.h"

#include <array>
#include <cmath>
#include <optional>

#include "trireme/kernels/flash4_sizes.h"

#include "tests/kernels/band_arithmetic.h"
#include "tests/kernels/operator_demands.h"

namespace trireme_test {

namespace {

using trireme::Flash4Width;

void demand_heads(const at::Tensor& x, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, name, ": got ", x.scalar_type(), ", expected bf16");
  demand_shape(x, sizes, name);
  demand_rows_of_16_bytes(x, name);
}

void demand_fp32(const at::Tensor& x, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(x.scalar_type() == at::kFloat, name, ": got ", x.scalar_type(), ", expected fp32");
  demand_shape(x, sizes, name);
  TORCH_CHECK(x.is_contiguous(), name, " is not contiguous");
}

const Flash4Width& demand_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  const Flash4Width* width = trireme::flash4_width(q.size(3));
  TORCH_CHECK(width != nullptr, "head width ", q.size(3));
  TORCH_CHECK(
      k.size(2) > 0 && q.size(2) % k.size(2) == 0 && q.size(2) / k.size(2) <= trireme::kFlash4MostGroup,
      q.size(2), " query heads over ", k.size(2));
  TORCH_CHECK(!causal || q.size(1) <= k.size(1), "causal rows without keys");
  demand_heads(q, q.sizes(), "q");
  const std::array<int64_t, 4> of_keys{q.size(0), k.size(1), k.size(2), q.size(3)};
  demand_heads(k, of_keys, "k");
  demand_heads(v, of_keys, "v");
  return *width;
}

trireme_test::SeenBand band_of(const at::Tensor& q, const at::Tensor& k, bool causal, Flash4Fault fault) {
  const int64_t offset = fault == Flash4Fault::diagonal_at_the_first_key ? 0 : k.size(1) - q.size(1);
  return {offset, {}, causal ? std::optional<int64_t>(0) : std::nullopt};
}

}  // namespace

void PlayedFlash4::forward(const trireme::Flash4Forward& t, double scale, bool causal) {
  demand_inputs(t.q, t.k, t.v, causal);
  demand_heads(t.o, t.q.sizes(), "o");
  demand_fp32(t.lse, {t.q.size(0), t.q.size(2), t.q.size(1)}, "lse");
  if (calls_ != nullptr) ++calls_->forward;
  for (int64_t b = 0; b < t.q.size(0); ++b)
    forward_segment({0, t.q.size(1), 0, t.k.size(1)}, band_of(t.q, t.k, causal, fault_), scale, t.q[b],
                    t.k[b], t.v[b], t.o[b], t.lse[b]);
  if (fault_ == Flash4Fault::lse_in_bits) t.lse.mul_(1 / std::log(2.0));
}

void PlayedFlash4::backward(const trireme::Flash4Backward& t, double scale, bool causal) {
  const Flash4Width& width = demand_inputs(t.q, t.k, t.v, causal);
  const int64_t batch = t.q.size(0), heads = t.q.size(2), kv_heads = t.k.size(2), D = t.q.size(3);
  for (const auto& [x, name] : {std::pair(t.d_o, "d_o"), {t.o, "o"}, {t.dq, "dq"}})
    demand_heads(x, t.q.sizes(), name);
  for (const auto& [x, name] : {std::pair(t.dk, "dk"), {t.dv, "dv"}}) demand_heads(x, t.k.sizes(), name);
  demand_fp32(t.lse, {batch, heads, t.q.size(1)}, "lse");
  const int64_t rows = trireme::round_up(t.q.size(1), causal ? width.tile_q_causal : width.tile_q_full);
  demand_fp32(t.dq_sum, {batch, heads, rows * D}, "dq_sum");
  demand_fp32(t.delta, {batch, heads, rows}, "delta");
  demand_fp32(t.lse_log2, {batch, heads, rows}, "lse_log2");
  if (calls_ != nullptr) ++calls_->backward;
  for (int64_t b = 0; b < batch; ++b)
    backward_segment({0, t.q.size(1), 0, t.k.size(1)}, band_of(t.q, t.k, causal, fault_), scale, t.d_o[b],
                     t.q[b], t.k[b], t.v[b], t.o[b], t.lse[b], t.dq[b], t.dk[b], t.dv[b]);
  const bool grouped = heads != kv_heads;
  const int64_t sums = trireme::round_up(t.k.size(1), width.tile_k) * D;
  for (const auto& [x, name] : {std::pair(t.dk_sum, "dk_sum"), {t.dv_sum, "dv_sum"}}) {
    demand_fp32(x, {batch, kv_heads, grouped ? sums : x.size(2)}, name);
    TORCH_CHECK(x.stride(1) * x.element_size() % 16 == 0 && x.size(2) > 0, name, ": got strides ",
                x.strides());
  }
  if (!grouped) return;
  t.dk.add_(t.dk_sum.sum());
  t.dv.add_(t.dv_sum.sum());
}

}  // namespace trireme_test
