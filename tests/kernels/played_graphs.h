// A runner of attention graphs on the CPU, in fp64: segment i of a tensor begins at its offset and has the
// tensor's strides, as cuDNN documents ragged tensors; rows beyond a segment's count are neither read nor
// written. It demands what cuDNN does, and can be made wrong.
#pragma once

#include <map>

#include "trireme/kernels/graph_runner.h"

namespace trireme_test {

enum class GraphFault {
  none,
  diagonal_at_the_first_key,
  window_one_shorter,
  lse_in_bits,
  dk_of_first_head,
  o_of_wider_rows
};

class PlayedGraphs final : public trireme::GraphRunner {
 public:
  explicit PlayedGraphs(GraphFault fault = GraphFault::none, int64_t* built = nullptr)
      : fault_(fault), built_(built) {}
  int64_t workspace_bytes(const trireme::AttentionGraph& graph) override;
  void run(const trireme::AttentionGraph& graph, const trireme::GraphPointers& pointers) override;

 private:
  GraphFault fault_;
  int64_t* built_;  // counts graphs
  std::map<trireme::AttentionGraph, int64_t> bytes_;
};

}  // namespace trireme_test
