#include "trireme/kernels/frontend_graph.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <unordered_map>

#include "trireme/base/error.h"

namespace cudnn_frontend {
// cudnn-frontend asks its user to define and set it (cudnn_frontend_shim.h).
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace trireme {

namespace {

namespace fe = cudnn_frontend;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr int64_t kRowsUid = 1, kKeysUid = 2, kFirstOffsetsUid = 10, kFirstTensorUid = 100;
constexpr const char* kInstead = "; use --attention auto or --attention flash";

fe::DataType_t data_type(GraphElement element) {
  switch (element) {
    case GraphElement::bf16:
      return fe::DataType_t::BFLOAT16;
    case GraphElement::fp16:
      return fe::DataType_t::HALF;
    default:
      return fe::DataType_t::FLOAT;
  }
}

void demand(fe::error_t status, const char* step, const AttentionGraph& graph) {
  if (status.is_good()) return;
  throw ConfigError(cat("attention kernel 'cudnn_packed': cuDNN refused, in ", step, ", a graph of ",
                        graph.segments, " segments, band ", graph.left, " ", graph.right, ", head width ",
                        graph.tensor(GraphRole::q).sizes[3], ": ", status.get_message(), kInstead));
}

}  // namespace

// Inputs by role, as cudnn-frontend wants them.
struct FrontendGraph::Built {
  explicit Built(const AttentionGraph& wanted) : description(wanted) {}

  void describe(const GraphTarget& target) {
    graph.set_io_data_type(data_type(description.tensor(GraphRole::q).element))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(target.compute_capability);
    add_indices();
    for (size_t i = 0; i < description.tensors.size(); ++i)
      if (!description.tensors[i].output) inputs[description.tensors[i].role] = input(i);
    description.pass == GraphPass::forward ? add_forward() : add_backward();
  }

  fe::graph::Graph graph;
  AttentionGraph description;
  std::shared_ptr<fe::DeviceProperties> properties;

 private:
  TensorPointer index(int64_t uid, const std::string& name, int64_t count, fe::DataType_t type) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(uid)
                            .set_dim({count, 1, 1, 1})
                            .set_stride({1, 1, 1, 1})
                            .set_data_type(type));
  }
  void add_indices() {
    const int64_t segments = description.segments;
    rows = index(kRowsUid, "rows_of_segments", segments, fe::DataType_t::INT32);
    keys = index(kKeysUid, "keys_of_segments", segments, fe::DataType_t::INT32);
    for (size_t i = 0; i < description.offsets.size(); ++i)
      offsets.push_back(index(kFirstOffsetsUid + static_cast<int64_t>(i), cat("offsets_", i), segments + 1,
                              fe::DataType_t::INT64));
  }
  TensorPointer input(size_t i) {
    const GraphTensor& tensor = description.tensors[i];
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(cat("tensor_", static_cast<int>(tensor.role)))
                            .set_uid(kFirstTensorUid + static_cast<int64_t>(i))
                            .set_dim(tensor.sizes)
                            .set_stride(tensor.strides)
                            .set_data_type(data_type(tensor.element))
                            .set_ragged_offset(offsets[static_cast<size_t>(tensor.offsets)]));
  }
  void output(GraphRole role, const TensorPointer& result) {
    const GraphTensor& tensor = description.tensor(role);
    const auto i = &tensor - description.tensors.data();
    result->set_output(true)
        .set_uid(kFirstTensorUid + i)
        .set_dim(tensor.sizes)
        .set_stride(tensor.strides)
        .set_data_type(data_type(tensor.element))
        .set_ragged_offset(offsets[static_cast<size_t>(tensor.offsets)]);
  }
  // Of either pass. cuDNN counts the diagonal as one of the keys on its left.
  template <typename Attributes>
  Attributes& with_mask(Attributes& attributes) {
    attributes.set_attn_scale(static_cast<float>(description.scale))
        .set_padding_mask(true)
        .set_seq_len_q(rows)
        .set_seq_len_kv(keys);
    if (description.left != kUnbounded || description.right != kUnbounded)
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    if (description.left != kUnbounded)
      attributes.set_diagonal_band_left_bound(static_cast<int>(description.left + 1));
    if (description.right != kUnbounded)
      attributes.set_diagonal_band_right_bound(static_cast<int>(description.right));
    return attributes;
  }
  void add_forward() {
    fe::graph::SDPA_attributes attributes;
    with_mask(attributes.set_name("attention").set_generate_stats(true));
    const auto [o, lse] =
        graph.sdpa(inputs[GraphRole::q], inputs[GraphRole::k], inputs[GraphRole::v], attributes);
    output(GraphRole::o, o);
    output(GraphRole::lse, lse);
  }
  void add_backward() {
    fe::graph::SDPA_backward_attributes attributes;
    with_mask(attributes.set_name("attention_backward")
                  .set_max_total_seq_len_q(description.all_rows)
                  .set_max_total_seq_len_kv(description.all_keys));
    const auto [dq, dk, dv] =
        graph.sdpa_backward(inputs[GraphRole::q], inputs[GraphRole::k], inputs[GraphRole::v],
                            inputs[GraphRole::o], inputs[GraphRole::d_o], inputs[GraphRole::lse], attributes);
    output(GraphRole::dq, dq);
    output(GraphRole::dk, dk);
    output(GraphRole::dv, dv);
  }

  TensorPointer rows, keys;
  std::vector<TensorPointer> offsets;
  std::unordered_map<GraphRole, TensorPointer> inputs;
};

void load_cudnn(const std::string& library) {
  if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr)
    throw ConfigError(
        cat("attention kernel 'cudnn_packed': cuDNN cannot be loaded: ", ::dlerror(), kInstead));
}

CudnnHandle::CudnnHandle(void* cuda_stream) {
  load_cudnn("libcudnn.so.9");
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t status = fe::detail::create_handle(&handle);
  if (status != CUDNN_STATUS_SUCCESS)
    throw ConfigError(cat("attention kernel 'cudnn_packed': cuDNN gave no handle (status ",
                          static_cast<int>(status), ")", kInstead));
  handle_ = handle;
  set_stream(cuda_stream);
}

CudnnHandle::~CudnnHandle() {
  fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle_));
}

void CudnnHandle::set_stream(void* cuda_stream) {
  const cudnnStatus_t status =
      fe::detail::set_stream(static_cast<cudnnHandle_t>(handle_), static_cast<cudaStream_t>(cuda_stream));
  TRIREME_ASSERT(status == CUDNN_STATUS_SUCCESS, "cudnnSetStream: status ", static_cast<int>(status));
}

FrontendGraph::FrontendGraph(const AttentionGraph& wanted, const GraphTarget& target)
    : built_(std::make_unique<Built>(wanted)) {
  fe::graph::Graph& graph = built_->graph;
  if (target.handle == nullptr) {
    const std::string& json = target.device_properties;
    built_->properties = std::make_shared<fe::DeviceProperties>();
    demand(built_->properties->deserialize({json.begin(), json.end()}), "the device's properties", wanted);
    graph.set_device_properties(built_->properties);
  }
  built_->describe(target);
  demand(graph.validate(), "validation", wanted);
  if (target.handle != nullptr)
    demand(graph.build_operation_graph(static_cast<cudnnHandle_t>(target.handle->get())), "operations",
           wanted);
  else
    demand(graph.build_operation_graph(), "operations", wanted);
  demand(graph.create_execution_plans({fe::HeurMode_t::A}), "plans", wanted);
  demand(graph.check_support(), "support", wanted);
  demand(graph.build_plans(), "building", wanted);
}

FrontendGraph::~FrontendGraph() = default;

int64_t FrontendGraph::workspace_bytes() const {
  int64_t bytes = 0;
  demand(built_->graph.get_workspace_size(bytes), "workspace", built_->description);
  return bytes;
}

void FrontendGraph::run(const CudnnHandle& handle, const GraphPointers& pointers) {
  std::unordered_map<int64_t, void*> by_uid{{kRowsUid, pointers.rows_of_segments},
                                            {kKeysUid, pointers.keys_of_segments}};
  for (size_t i = 0; i < pointers.offsets.size(); ++i)
    by_uid[kFirstOffsetsUid + static_cast<int64_t>(i)] = pointers.offsets[i];
  for (size_t i = 0; i < pointers.tensors.size(); ++i)
    by_uid[kFirstTensorUid + static_cast<int64_t>(i)] = pointers.tensors[i];
  demand(built_->graph.execute(static_cast<cudnnHandle_t>(handle.get()), by_uid, pointers.workspace), "a run",
         built_->description);
}

}  // namespace trireme
