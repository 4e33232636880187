#include "trireme/kernels/attention_graph.h"

#include <algorithm>
#include <bit>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/kernels/long_documents.h"

namespace trireme {

namespace {

constexpr int64_t kLeastGraphRows = 128;  // a block of rows of cuDNN's kernels

int64_t power_of_two(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, count))));
}

int64_t rounded_total(int64_t rows) {
  return round_up(rows, graph_length_step(std::max<int64_t>(1, rows)));
}

// Adds tensors and the offsets that they need.
class GraphTensors {
 public:
  GraphTensors(const GraphCall& call, AttentionGraph& graph) : call_(call), graph_(graph) {}

  void add_input(GraphRole role, const GraphStrides& strides) { add(role, strides, false); }
  void add_contiguous_input(GraphRole role) { add(role, contiguous(role), false); }
  void add_output(GraphRole role) { add(role, contiguous(role), true); }

 private:
  static bool of_keys(GraphRole role) {
    return role == GraphRole::k || role == GraphRole::v || role == GraphRole::dk || role == GraphRole::dv;
  }
  int64_t heads_of(GraphRole role) const { return of_keys(role) ? call_.kv_heads : call_.query_heads; }
  int64_t width_of(GraphRole role) const { return role == GraphRole::lse ? 1 : call_.width; }
  GraphStrides contiguous(GraphRole role) const { return {heads_of(role) * width_of(role), width_of(role)}; }

  void add(GraphRole role, const GraphStrides& strides, bool output) {
    const int64_t rows = rows_of_graph(of_keys(role) ? call_.longest_k : call_.longest_q);
    const GraphRows side = of_keys(role) ? GraphRows::keys : GraphRows::queries;
    graph_.tensors.push_back({role,
                              role == GraphRole::lse ? GraphElement::fp32 : call_.element,
                              {graph_.segments, heads_of(role), rows, width_of(role)},
                              {rows * strides.row, strides.head, strides.row, 1},
                              offsets_of({side, strides.row}),
                              output});
  }

  int64_t offsets_of(const SegmentOffsets& wanted) {
    const auto known = std::find(graph_.offsets.begin(), graph_.offsets.end(), wanted);
    const int64_t index = known - graph_.offsets.begin();
    if (known == graph_.offsets.end()) graph_.offsets.push_back(wanted);
    return index;
  }
  const GraphCall& call_;
  AttentionGraph& graph_;
};

}  // namespace

const GraphTensor& AttentionGraph::tensor(GraphRole role) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const GraphTensor& known) { return known.role == role; });
  TRIREME_ASSERT(found != tensors.end(), "the graph has no tensor of role ", static_cast<int>(role));
  return *found;
}

int64_t segments_of_graph(int64_t segments) {
  return power_of_two(segments);
}

int64_t rows_of_graph(int64_t rows) {
  return std::max(kLeastGraphRows, power_of_two(rows));
}

AttentionGraph attention_graph(const GraphCall& call) {
  TRIREME_ASSERT(call.segments > 0 && call.longest_q > 0 && call.longest_k > 0, "a graph of ", call.segments,
                 " segments of ", call.longest_q, " rows and ", call.longest_k, " keys");
  AttentionGraph graph{call.pass,
                       call.scale,
                       call.band.left,
                       call.band.right,
                       segments_of_graph(call.segments),
                       rounded_total(call.all_rows),
                       rounded_total(call.all_keys),
                       {},
                       {}};
  GraphTensors tensors(call, graph);
  if (call.pass == GraphPass::forward) {
    tensors.add_input(GraphRole::q, call.q);
    tensors.add_input(GraphRole::k, call.k);
    tensors.add_input(GraphRole::v, call.v);
    for (const GraphRole role : {GraphRole::o, GraphRole::lse}) tensors.add_output(role);
    return graph;
  }
  for (const GraphRole role :
       {GraphRole::q, GraphRole::k, GraphRole::v, GraphRole::o, GraphRole::d_o, GraphRole::lse})
    tensors.add_contiguous_input(role);
  for (const GraphRole role : {GraphRole::dq, GraphRole::dk, GraphRole::dv}) tensors.add_output(role);
  return graph;
}

int64_t graph_backward_bytes(int64_t all_rows, int64_t all_keys, int64_t query_heads, int64_t kv_heads,
                             int64_t width) {
  constexpr int64_t kSum_bytes = 4;
  const int64_t of_rows = rounded_total(all_rows) * query_heads * (width + 1);
  const int64_t of_keys = query_heads == kv_heads ? 0 : 2 * rounded_total(all_keys) * query_heads * width;
  return (of_rows + of_keys) * kSum_bytes;
}

}  // namespace trireme
