// A handle and the graphs built so far, of one rank and its device.
#include <map>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/base/error.h"
#include "trireme/device/device_fault.h"
#include "trireme/kernels/frontend_graph.h"

namespace trireme {

namespace {

constexpr int kHopper = 9, kBlackwell = 10;  // major compute capabilities

// On a device that has failed cuDNN refuses what it took before.
template <typename Body>
auto unless_device_failed(const Body& body) {
  try {
    return body();
  } catch (const ConfigError&) {
    check_device();
    throw;
  }
}

class CudnnGraphRunner final : public GraphRunner {
 public:
  CudnnGraphRunner() : handle_(unless_device_failed([] { return CudnnHandle(current_stream()); })) {
    const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
    compute_capability_ = 10 * device->major + device->minor;
    if (device->major != kHopper && device->major != kBlackwell)
      throw ConfigError(cat("attention kernel 'cudnn_packed': got a GPU of compute capability ",
                            device->major, ".", device->minor,
                            ", expected 9.x or 10.x, where cuDNN sizes its sums by the rows that there are; "
                            "use --attention auto or --attention flash"));
  }

  int64_t workspace_bytes(const AttentionGraph& graph) override {
    return unless_device_failed([&] { return built(graph).workspace_bytes(); });
  }

  void run(const AttentionGraph& graph, const GraphPointers& pointers) override {
    handle_.set_stream(current_stream());
    unless_device_failed([&] { built(graph).run(handle_, pointers); });
  }

 private:
  static void* current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

  FrontendGraph& built(const AttentionGraph& graph) {
    auto found = graphs_.find(graph);
    if (found == graphs_.end())
      found = graphs_
                  .emplace(graph, std::make_unique<FrontendGraph>(
                                      graph, GraphTarget{compute_capability_, &handle_, {}}))
                  .first;
    return *found->second;
  }

  CudnnHandle handle_;
  int compute_capability_ = 0;
  std::map<AttentionGraph, std::unique_ptr<FrontendGraph>> graphs_;
};

}  // namespace

std::unique_ptr<GraphRunner> make_cudnn_graph_runner() {
  return std::make_unique<CudnnGraphRunner>();
}

}  // namespace trireme
