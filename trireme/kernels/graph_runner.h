// Who builds and runs the graphs of attention_graph.h: cuDNN on CUDA (cudnn_graph_runner.cpp). Tests play one
// on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/kernels/attention_graph.h"

namespace trireme {

// Of one run of a graph, on its device; in the order of the graph's lists.
struct GraphPointers {
  std::vector<void*> tensors;
  std::vector<void*> offsets;
  void* rows_of_segments = nullptr;
  void* keys_of_segments = nullptr;
  void* workspace = nullptr;
};

class GraphRunner {
 public:
  virtual ~GraphRunner() = default;
  GraphRunner& operator=(GraphRunner&&) = delete;
  // Builds the graph where it is new. Throws ConfigError: it cannot be had, and why.
  virtual int64_t workspace_bytes(const AttentionGraph& graph) = 0;
  // On the current stream, of a graph whose workspace was asked for.
  virtual void run(const AttentionGraph& graph, const GraphPointers& pointers) = 0;
};

// cuDNN's, for the current device. Throws ConfigError: this build has no cudnn-frontend, the GPU is older
// than Hopper or cuDNN cannot be loaded.
std::unique_ptr<GraphRunner> make_cudnn_graph_runner();

}  // namespace trireme
