#include "tests/kernels/played_graphs.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/kernels/band_arithmetic.h"

namespace trireme_test {

namespace {

using trireme::AttentionGraph;
using trireme::GraphElement;
using trireme::GraphPass;
using trireme::GraphPointers;
using trireme::GraphRole;
using trireme::GraphRows;
using trireme::GraphTensor;

constexpr int64_t kWorkspace_bytes = 1000;

at::ScalarType dtype_of(GraphElement element) {
  return element == GraphElement::fp32   ? at::kFloat
         : element == GraphElement::fp16 ? at::kHalf
                                         : at::kBFloat16;
}

void demand_layout(const AttentionGraph& graph, const GraphTensor& tensor) {
  const bool lse = tensor.role == GraphRole::lse;
  TORCH_CHECK(tensor.sizes.size() == 4 && tensor.strides.size() == 4 && tensor.strides[3] == 1);
  TORCH_CHECK(tensor.sizes[0] == graph.segments && tensor.sizes[2] % 128 == 0);
  // 16 bytes at a time.
  TORCH_CHECK(lse || (tensor.strides[1] % 8 == 0 && tensor.strides[2] % 8 == 0), "rows are not aligned");
  // Seen on an H100 and an H200 with cuDNN 9.19: else dq and dk are wrong, and memory beyond them is written.
  TORCH_CHECK(graph.pass == GraphPass::forward || (tensor.strides[1] == tensor.sizes[3] &&
                                                   tensor.strides[2] == tensor.sizes[1] * tensor.sizes[3]),
              "a tensor of backward that is not contiguous");
  const auto& offsets = graph.offsets.at(static_cast<size_t>(tensor.offsets));
  TORCH_CHECK(offsets.elements_of_row == tensor.strides[2], "offsets of another row stride");
}

// Segment `i` of every tensor as rows, [rows, heads, D] and lse [rows, heads].
class SegmentViews {
 public:
  SegmentViews(const AttentionGraph& graph, const GraphPointers& pointers, int64_t i)
      : graph_(graph), pointers_(pointers), i_(i) {}

  int64_t rows() const { return static_cast<const int32_t*>(pointers_.rows_of_segments)[i_]; }
  int64_t keys() const { return static_cast<const int32_t*>(pointers_.keys_of_segments)[i_]; }

  at::Tensor operator[](GraphRole role) const {
    const GraphTensor& tensor = graph_.tensor(role);
    const auto index = static_cast<size_t>(&tensor - graph_.tensors.data());
    const auto offsets = static_cast<size_t>(tensor.offsets);
    const auto* first = static_cast<const int64_t*>(pointers_.offsets.at(offsets));
    const int64_t count = graph_.offsets[offsets].rows == GraphRows::queries ? rows() : keys();
    TORCH_CHECK(count <= tensor.sizes[2], count, " rows in a graph of ", tensor.sizes[2]);
    TORCH_CHECK(first[i_] + count * tensor.strides[2] <= first[graph_.segments], "a segment beyond the end");
    const at::ScalarType dtype = dtype_of(tensor.element);
    char* begin = static_cast<char*>(pointers_.tensors.at(index)) +
                  first[i_] * static_cast<int64_t>(c10::elementSize(dtype));
    TORCH_CHECK(role == GraphRole::lse || reinterpret_cast<uintptr_t>(begin) % 16 == 0, "not aligned");
    return at::from_blob(begin, {count, tensor.sizes[1], tensor.sizes[3]},
                         {tensor.strides[2], tensor.strides[1], 1}, at::TensorOptions(dtype));
  }

 private:
  const AttentionGraph& graph_;
  const GraphPointers& pointers_;
  int64_t i_;
};

SeenBand band_of(const AttentionGraph& graph, int64_t rows, int64_t keys, GraphFault fault) {
  SeenBand band{fault == GraphFault::diagonal_at_the_first_key ? 0 : keys - rows, {}, {}};
  if (graph.left != trireme::kUnbounded)
    band.left = graph.left - (fault == GraphFault::window_one_shorter ? 1 : 0);
  if (graph.right != trireme::kUnbounded) band.right = graph.right;
  return band;
}

}  // namespace

int64_t PlayedGraphs::workspace_bytes(const AttentionGraph& graph) {
  if (bytes_.emplace(graph, kWorkspace_bytes).second && built_ != nullptr) ++*built_;
  return kWorkspace_bytes;
}

void PlayedGraphs::run(const AttentionGraph& graph, const GraphPointers& pointers) {
  TORCH_CHECK(bytes_.count(graph) == 1, "a graph that was not built");
  TORCH_CHECK(pointers.workspace != nullptr);
  for (const GraphTensor& tensor : graph.tensors) demand_layout(graph, tensor);
  for (int64_t i = 0; i < graph.segments; ++i) {
    const SegmentViews views(graph, pointers, i);
    const int64_t rows = views.rows(), keys = views.keys();
    TORCH_CHECK((rows == 0) == (keys == 0), "rows without keys, or keys without rows");
    if (rows == 0) continue;
    const Segment all{0, rows, 0, keys};
    const SeenBand band = band_of(graph, rows, keys, fault_);
    const at::Tensor q = views[GraphRole::q], k = views[GraphRole::k], v = views[GraphRole::v],
                     o = views[GraphRole::o], lse_rows = views[GraphRole::lse].squeeze(2);
    const at::Tensor lse = lse_rows.t().contiguous();
    if (graph.pass == GraphPass::forward) {
      forward_segment(all, band, graph.scale, q, k, v, o, lse);
      if (fault_ == GraphFault::o_of_wider_rows && q.stride(0) != q.size(1) * q.size(2)) o.mul_(0.8);
      lse_rows.copy_(fault_ == GraphFault::lse_in_bits ? (lse / std::log(2)).t() : lse.t());
      continue;
    }
    const at::Tensor dk = views[GraphRole::dk];
    backward_segment(all, band, graph.scale, views[GraphRole::d_o], q, k, v, o, lse, views[GraphRole::dq], dk,
                     views[GraphRole::dv]);
    if (fault_ == GraphFault::dk_of_first_head) dk.mul_(0.8);
  }
}

}  // namespace trireme_test
