// A graph of attention_graph.h, built by cudnn-frontend and planned by cuDNN. No torch; cuDNN is loaded when
// it is first asked for. Plans for a device by its properties need no device (tests/kernels).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/kernels/graph_runner.h"

namespace trireme {

// Loads libcudnn.so.9, or the file that is given. Throws ConfigError.
class CudnnHandle {
 public:
  explicit CudnnHandle(void* cuda_stream);
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;
  void set_stream(void* cuda_stream);
  void* get() const { return handle_; }

 private:
  void* handle_ = nullptr;
};
void load_cudnn(const std::string& library);

// The device that a graph is planned for: by a handle, or by cuDNN's JSON of a device's properties.
struct GraphTarget {
  int compute_capability = 0;  // 90 for 9.0
  const CudnnHandle* handle = nullptr;
  std::string device_properties;
};

class FrontendGraph {
 public:
  // Throws ConfigError: cudnn-frontend or cuDNN refuses the graph, with their words.
  FrontendGraph(const AttentionGraph& graph, const GraphTarget& target);
  ~FrontendGraph();
  FrontendGraph(const FrontendGraph&) = delete;
  FrontendGraph& operator=(const FrontendGraph&) = delete;
  int64_t workspace_bytes() const;
  void run(const CudnnHandle& handle, const GraphPointers& pointers);

 private:
  struct Built;
  std::unique_ptr<Built> built_;
};

}  // namespace trireme
