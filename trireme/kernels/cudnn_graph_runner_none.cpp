#include "trireme/base/error.h"
#include "trireme/kernels/graph_runner.h"

namespace trireme {

std::unique_ptr<GraphRunner> make_cudnn_graph_runner() {
  throw ConfigError(
      "attention kernel 'cudnn_packed': this build has no CUDA half, or was made without cudnn-frontend's "
      "headers; "
      "build with ./dev build cuda, or use --attention auto or --attention flash");
}

}  // namespace trireme
