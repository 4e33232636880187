// Attention by graphs of our own (attention_graph.h), which know segments, windows and diagonals at the last
// key: what cuDNN can and libtorch's calls of it cannot. Tensors are rows of all samples:
//
//   q_nhD, k_mkD, v_mkD with any row stride  ->  pointers, offsets of segments, a workspace
//                                            ->  o_nhD, lse_nh
//
// Which layouts cuDNN takes is not documented. So the first call of each kind (dtype, head width, mask, grouped
// heads) is preceded by a small one, whose results FlashAttention must confirm.
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/kernel_agreement.h"
#include "trireme/kernels/segment_table.h"

namespace trireme {

namespace {

GraphElement element_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? GraphElement::fp16 : GraphElement::bf16;
}

// [b, s, heads, D] or [n, heads, D] -> [n, heads, D], read 16 bytes at a time.
at::Tensor as_graph_rows(const at::Tensor& x) {
  const at::Tensor rows = x.dim() == 4 ? x.flatten(0, 1) : x;
  const auto aligned = [&](int64_t elements) { return elements * rows.element_size() % 16 == 0; };
  const bool as_is = rows.stride(2) == 1 && aligned(rows.stride(0)) && aligned(rows.stride(1)) &&
                     reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
  return as_is ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

at::Tensor contiguous_rows(const at::Tensor& x) {
  return as_graph_rows(x.contiguous());
}

GraphStrides strides_of(const at::Tensor& rows) {
  return {rows.stride(0), rows.stride(1)};
}

at::Tensor result_rows(const at::Tensor& like, int64_t heads, bool all_written) {
  const std::vector<int64_t> sizes{like.size(0), heads, like.size(2)};
  return all_written ? at::empty(sizes, like.options()) : at::zeros(sizes, like.options());
}

class CudnnPackedKernel final : public CallKernel {
 public:
  CudnnPackedKernel(std::unique_ptr<GraphRunner> runner, std::unique_ptr<CallKernel> judge)
      : runner_(std::move(runner)), judge_(std::move(judge)) {}

  std::string name() const override { return "cudnn_packed (cuDNN's graphs of segments)"; }

  std::string refusal(const MaskCall& /*call*/, const AttentionSizes& sizes) const override {
    if (graph_takes_width(sizes.width)) return {};
    return cat("got head width ", sizes.width,
               ", expected a multiple of 16 from 32 to 128; use --attention auto or --attention flash");
  }

  // Offsets are counted in 64 bits; what cuDNN counts within a call no source tells, so 31 bits suffice it.
  HeadsOfCall heads_of(const MaskCall& call, const AttentionSizes& sizes) const override {
    const int64_t rows = (call.sample_end - call.sample) * std::max(call.rows(), call.keys());
    const int64_t heads = std::numeric_limits<int32_t>::max() / (rows * sizes.width);
    return {std::clamp<int64_t>(heads, 1, sizes.query_heads)};
  }

  KernelMask mask_of(const MaskCall& call, at::Device device) const override {
    KernelMask mask = CallKernel::mask_of(call, device);
    mask.table = std::make_shared<SegmentTable>(call, device);
    return mask;
  }

  AttentionOutput forward(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                          const KernelMask& mask) override {
    const at::Tensor q = as_graph_rows(q_in), k = as_graph_rows(k_in), v = as_graph_rows(v_in);
    confirm(q, k, mask);
    const SegmentTable& table = *mask.table;
    const int64_t heads = q.size(1);
    const at::Tensor o = result_rows(q, heads, table.covers_rows());
    const at::TensorOptions fp32 = q.options().dtype(at::kFloat);
    const at::Tensor lse_nh =
        table.covers_rows() ? at::empty({q.size(0), heads}, fp32)
                            : at::full({q.size(0), heads}, -std::numeric_limits<double>::infinity(), fp32);
    run(call_of(GraphPass::forward, q, k, v, mask), mask,
        {{GraphRole::q, q},
         {GraphRole::k, k},
         {GraphRole::v, v},
         {GraphRole::o, o},
         {GraphRole::lse, lse_nh}});
    if (!mask.dense()) return {o, lse_nh.t().contiguous()};
    return {o.view(q_in.sizes()), lse_nh.view({q_in.size(0), q_in.size(1), heads}).transpose(1, 2)};
  }

  AttentionGradients backward(const at::Tensor& d_o_in, const at::Tensor& q_in, const at::Tensor& k_in,
                              const at::Tensor& v_in, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    const at::Tensor q = contiguous_rows(q_in), k = contiguous_rows(k_in), v = contiguous_rows(v_in),
                     o = contiguous_rows(saved.o), d_o = contiguous_rows(d_o_in);
    confirm(q, k, mask);
    const SegmentTable& table = *mask.table;
    const at::Tensor lse_nh =
        (mask.dense() ? saved.lse.transpose(1, 2).flatten(0, 1) : saved.lse.t()).contiguous();
    const at::Tensor dq = result_rows(q, q.size(1), table.covers_rows()),
                     dk = result_rows(k, k.size(1), table.covers_keys()),
                     dv = result_rows(v, v.size(1), table.covers_keys());
    run(call_of(GraphPass::backward, q, k, v, mask), mask,
        {{GraphRole::q, q},
         {GraphRole::k, k},
         {GraphRole::v, v},
         {GraphRole::o, o},
         {GraphRole::d_o, d_o},
         {GraphRole::lse, lse_nh},
         {GraphRole::dq, dq},
         {GraphRole::dk, dk},
         {GraphRole::dv, dv}});
    return {dq.view(q_in.sizes()), dk.view(k_in.sizes()), dv.view(v_in.sizes())};
  }

 private:
  using TensorsByRole = std::map<GraphRole, at::Tensor>;

  static GraphCall call_of(GraphPass pass, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const KernelMask& mask) {
    const SegmentTable& table = *mask.table;
    return {pass,
            element_of(q.scalar_type()),
            q.size(1),
            k.size(1),
            q.size(2),
            mask.scores.scale,
            mask.band,
            table.segments(),
            table.longest_q(),
            table.longest_k(),
            table.all_rows(),
            table.all_keys(),
            strides_of(q),
            strides_of(k),
            strides_of(v)};
  }

  void run(const GraphCall& call, const KernelMask& mask, const TensorsByRole& tensors) {
    SegmentTable& table = *mask.table;
    if (table.segments() == 0) return;
    const AttentionGraph graph = attention_graph(call);
    const at::Tensor& q = tensors.at(GraphRole::q);
    const at::Tensor workspace = at::empty({runner_->workspace_bytes(graph)}, q.options().dtype(at::kByte));
    GraphPointers pointers;
    for (const GraphTensor& tensor : graph.tensors)
      pointers.tensors.push_back(tensors.at(tensor.role).data_ptr());
    for (const SegmentOffsets& offsets : graph.offsets)
      pointers.offsets.push_back(table.offsets(offsets).data_ptr());
    pointers.rows_of_segments = table.rows_of_segments().data_ptr();
    pointers.keys_of_segments = table.keys_of_segments().data_ptr();
    pointers.workspace = workspace.data_ptr();
    runner_->run(graph, pointers);
  }

  // Before the first call of a kind. The small call is of that kind too, so the kind counts as confirmed
  // while it runs.
  void confirm(const at::Tensor& q, const at::Tensor& k, const KernelMask& mask) {
    const AgreementCase c{q.scalar_type(), q.device(), q.size(2), q.size(1) / k.size(1), mask.band};
    const Kind kind{c.dtype,
                    c.width,
                    c.heads_of_group > 1,
                    mask.band.left != kUnbounded,
                    mask.band.right != kUnbounded,
                    mask.band.right > 0};
    if (!confirmed_.insert(kind).second) return;
    try {
      const std::string difference = kernel_difference(*this, *judge_, c);
      if (!difference.empty())
        throw ConfigError(cat("attention kernel 'cudnn_packed': its first small call differs from ",
                              judge_->name(), ": ", difference,
                              "; use --attention auto or --attention flash, and report this"));
    } catch (...) {
      confirmed_.erase(kind);
      throw;
    }
  }

  using Kind = std::tuple<at::ScalarType, int64_t, bool, bool, bool, bool>;

  std::unique_ptr<GraphRunner> runner_;
  std::unique_ptr<CallKernel> judge_;
  std::set<Kind> confirmed_;
};

}  // namespace

std::unique_ptr<CallKernel> make_cudnn_packed_kernel(std::unique_ptr<GraphRunner> runner) {
  return std::make_unique<CudnnPackedKernel>(std::move(runner), make_cuda_flash_kernel());
}

}  // namespace trireme
