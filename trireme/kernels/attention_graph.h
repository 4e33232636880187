// One call of attention over segments (packed documents) as an operation graph of cuDNN, as data. No torch,
// no cuDNN: frontend_graph.h builds it, cudnn_packed_kernel.cpp fills its tensors, the forecast counts it.
//
//   GraphCall: sizes and strides of one call   ->   AttentionGraph: tensors, offsets, rounded sizes
//
// cuDNN sees every tensor as [segments, heads, rows, D] with strides, and jumps to segment i by an offset in
// elements. So segments may lie anywhere in the rows of a call, with gaps:
//
//   forward    q_nhD, k_mkD, v_mkD                    -> o_nhD, lse_nh
//   backward   q, k, v, o, do_nhD, lse_nh             -> dq_nhD, dk_mkD, dv_mkD
//
// The log-sum-exp lies row by row: cuDNN sizes its own sums over rows by the row stride of this tensor.
// Backward's tensors are contiguous: with q and k side by side in a row, and dq and dk not, cuDNN 9.19 writes
// wrong dq and dk on Hopper, and beyond them (docs/benchmarks/history/2026-11-27-gpu-review.md, finding 23).
//
// cuDNN builds a graph for every new size, which takes some 0.4 s. So segments and rows of a segment are
// rounded up to powers of two, and rows of all segments to one of 16 lengths an octave. Segments that are not
// there have no rows.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "trireme/kernels/mask_runs.h"

namespace trireme {

enum class GraphPass { forward, backward };
enum class GraphElement { bf16, fp16, fp32 };
enum class GraphRole { q, k, v, o, lse, d_o, dq, dk, dv };
enum class GraphRows { queries, keys };

// In elements; those of a head lie side by side.
struct GraphStrides {
  int64_t row = 0;
  int64_t head = 0;
};

struct GraphCall {
  GraphPass pass = GraphPass::forward;
  GraphElement element = GraphElement::bf16;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t width = 0;
  double scale = 1;
  Band band;
  int64_t segments = 0;
  int64_t longest_q = 0;  // rows of a segment
  int64_t longest_k = 0;
  int64_t all_rows = 0;  // from the first segment's first to the last one's last
  int64_t all_keys = 0;
  GraphStrides q, k, v;  // of forward; every other tensor is contiguous
};

// One more than segments, int64: the first row of each, then the end of the last, times `elements_of_row`.
struct SegmentOffsets {
  GraphRows rows = GraphRows::queries;
  int64_t elements_of_row = 0;
  auto operator<=>(const SegmentOffsets&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct GraphTensor {
  GraphRole role = GraphRole::q;
  GraphElement element = GraphElement::bf16;
  std::vector<int64_t> sizes;  // [segments, heads, rows, D], of lse [segments, heads, rows, 1]
  std::vector<int64_t> strides;
  int64_t offsets = 0;  // which of AttentionGraph::offsets
  bool output = false;
  auto operator<=>(const GraphTensor&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Beside its tensors a graph takes the rows and the keys of each segment, int32.
struct AttentionGraph {
  GraphPass pass = GraphPass::forward;
  double scale = 1;
  int64_t left = kUnbounded;  // as in Band: bounds around the diagonal, which ends at a segment's last key
  int64_t right = kUnbounded;
  int64_t segments = 0;
  int64_t all_rows = 0;
  int64_t all_keys = 0;
  std::vector<SegmentOffsets> offsets;
  std::vector<GraphTensor> tensors;
  auto operator<=>(const AttentionGraph&) const = default;  // NOLINT(modernize-use-nullptr)
  const GraphTensor& tensor(GraphRole role) const;
};

// Throws InternalError for a call without segments, rows or keys.
AttentionGraph attention_graph(const GraphCall& call);

// Segments of a graph that serves `segments`.
int64_t segments_of_graph(int64_t segments);
// Rows of the longest segment, of a graph that serves `rows`.
int64_t rows_of_graph(int64_t rows);

// Head widths that graphs of segments take: with others cuDNN's backward sizes its sums by segments x longest
// (cudnn-frontend 1.22: max_total_seq_len is dropped where D % 16 != 0).
constexpr bool graph_takes_width(int64_t width) {
  return width % 16 == 0 && width >= 32 && width <= 128;
}

// What backward asks for beside its tensors: dq in fp32, a sum for each query, and with grouped heads dk and
// dv of every query head, which cudnn-frontend sizes as fp32. cuDNN adds kilobytes
// (tests/kernels/frontend_graph_test.cpp).
int64_t graph_backward_bytes(int64_t all_rows, int64_t all_keys, int64_t query_heads, int64_t kv_heads,
                             int64_t width);

}  // namespace trireme
