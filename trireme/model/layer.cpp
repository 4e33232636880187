#include "trireme/model/layer.h"

#include "trireme/base/error.h"

namespace trireme {

at::Tensor Layer::mix_forward(const LayerTensors& /*layer*/, const DeltaShare& /*share*/,
                              const at::Tensor& /*columns_BSc*/,
                              const at::Tensor& /*document_begins_BS*/) const {
  throw InternalError("a layer of this family has no DeltaNet");
}

at::Tensor Layer::mix_backward(const LayerTensors& /*layer*/, UnitGradients& /*gradients*/,
                               const DeltaShare& /*share*/, const at::Tensor& /*columns_BSc*/,
                               const at::Tensor& /*document_begins_BS*/, const at::Tensor& /*do_BSo*/) const {
  throw InternalError("a layer of this family has no DeltaNet");
}

}  // namespace trireme
