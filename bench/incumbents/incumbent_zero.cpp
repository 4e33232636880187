#include "bench/incumbents/incumbent_zero.h"

#include <algorithm>

#include "trireme/base/sum_of.h"

namespace trireme {
namespace {

// runtime/zero/config.py: reduce_bucket_size, stage3_prefetch_bucket_size, stage3_max_live_parameters,
// sub_group_size.
constexpr int64_t kBucket_elements = 500'000'000, kPrefetch_elements = 50'000'000;
constexpr int64_t kLive_elements = 1'000'000'000, kSubGroup_elements = 1'000'000'000;
// stage3.py, _constant_buffered_norm2: what is squared in fp64 at once.
constexpr int64_t kNorm_elements = 250'000'000;
// aten/src/ATen/cuda/CUDABlas.cpp, parseChosenWorkspaceSize: on compute capability 9.
constexpr int64_t kCublasWorkspace_bytes = 4096 * 8 * 1024;

}  // namespace

IncumbentZero::IncumbentZero(const IncumbentRun& run, IncumbentTrace& trace) : run_(run), trace_(trace) {
  const int64_t elements = share(incumbent_parameters(run.model));
  const auto keep = [&](std::string_view name, std::string_view source, int64_t bytes) {
    states_.push_back(trace_.hold(name, source, bytes));
  };
  if (!run.policy.offload_parameters)
    keep("shares of the weights, bf16", "stage3.py _create_fp16_partitions_with_defragmentation",
         2 * elements);
  if (!run.policy.offload_optimizer) {
    keep("masters, fp32", "stage3.py _create_fp32_partitions", 4 * elements);
    keep("moments, fp32", "stage3.py initialize_optimizer_states", 8 * elements);
    keep("summed gradients, bf16", "stage3.py grad_partitions_flat_buffer", 2 * elements);
  }
  keep("gradient bucket, bf16", "stage3.py __ipg_bucket_flat_buffer", 2 * kBucket_elements);
  keep("cuBLAS workspace", "CUDABlas.cpp parseChosenWorkspaceSize", kCublasWorkspace_bytes);
}

std::vector<int64_t> IncumbentZero::layer_parameters() const {
  const ModelSizes& model = run_.model;
  const int64_t query = model.heads * model.head_dim, key = model.kv_heads * model.head_dim;
  const int64_t mlp = model.hidden * model.intermediate;
  return {model.hidden * query, model.hidden * key, model.hidden * key, query * model.hidden, mlp, mlp, mlp};
}

std::vector<Held> IncumbentZero::gather(const std::vector<int64_t>& elements) {
  std::vector<Held> whole;
  // NoGatherHandle: with one rank `.to(device)`, which copies from the host only.
  if (run_.ranks == 1 && !run_.policy.offload_parameters) return whole;
  Held flat;
  if (run_.ranks > 1)
    flat = trace_.hold("buffer of an all-gather, bf16", "partition_parameters.py _all_gather_dtype",
                       2 * sum_of(elements), TraceStream::gather);
  for (const int64_t parameter : elements)
    whole.push_back(trace_.hold("gathered weights, bf16",
                                "partition_parameters.py AllGatherCoalescedHandle.wait, NoGatherHandle",
                                2 * parameter, TraceStream::gather));
  return whole;
}

bool IncumbentZero::may_be_live(int64_t layers) const {
  return layers * sum_of(layer_parameters()) <= kLive_elements;
}

// partitioned_param_coordinator.py, fetch_sub_module: each module, as it starts forward or backward, has a
// bucket fetched ahead, until as many parameters are live as may be. A layer has more modules than buckets.
std::vector<Held> IncumbentZero::gather_layer(int64_t live_elements) {
  const std::vector<int64_t> layer = layer_parameters();
  if (run_.ranks == 1 && !run_.policy.offload_parameters) return {};
  const auto size_of = [&layer](std::size_t parameter) { return layer.at(parameter % layer.size()); };
  std::size_t next = 0;  // of this layer's parameters and the following ones'
  for (; next < ahead_.size(); ++next) live_elements += size_of(next);
  std::vector<int64_t> bucket;
  const auto gather_bucket = [&] {
    for (Held& parameter : gather(bucket)) ahead_.push_back(std::move(parameter));
    bucket.clear();
  };
  const std::size_t all = layer.size() * static_cast<std::size_t>(run_.model.layers);
  for (; next < layer.size() || (next < all && live_elements < kLive_elements); ++next) {
    bucket.push_back(size_of(next));
    live_elements += size_of(next);
    if (sum_of(bucket) >= kPrefetch_elements) gather_bucket();
  }
  if (!bucket.empty()) gather_bucket();
  std::vector<Held> whole;
  for (std::size_t parameter = 0; parameter < layer.size(); ++parameter) {
    whole.push_back(std::move(ahead_.front()));
    ahead_.pop_front();
  }
  return whole;
}

void IncumbentZero::add_gradient(Held gradient, int64_t elements) {
  if (waiting_elements_ + elements > kBucket_elements) reduce_bucket();
  if (elements <= kBucket_elements) gradient.release();  // copied to the bucket
  waiting_elements_ += elements;
  waiting_.push_back({std::move(gradient), elements});
}

void IncumbentZero::reduce_bucket() {
  constexpr auto kStream = TraceStream::reduce;
  if (waiting_.empty()) return;
  Held flat;
  if (waiting_.size() > 1 || waiting_.front().elements % run_.ranks != 0)
    flat = trace_.hold("buffer of a reduce-scatter, bf16",
                       "coalesced_collectives.py reduce_scatter_coalesced", 2 * waiting_elements_, kStream);
  std::vector<Held> shares;
  for (const Waiting& waiting : waiting_) {
    if (!run_.policy.offload_optimizer) break;
    const int64_t elements = share(waiting.elements);
    shares.push_back(trace_.hold("share of a gradient, back from the host, bf16", "stage3.py partition_grads",
                                 2 * elements, kStream));
    trace_.hold("norm of a gradient, fp64", "stage3.py _constant_buffered_norm2",
                8 * std::min(elements, kNorm_elements), kStream);
    trace_.hold("share of a gradient, fp32", "stage3.py partition_grads, grad_buffer.float()", 4 * elements,
                kStream);
  }
  waiting_.clear();
  waiting_elements_ = 0;
}

void IncumbentZero::step_optimizer() {
  if (run_.policy.offload_optimizer) return;
  const int64_t elements = std::min(share(incumbent_parameters(run_.model)), kSubGroup_elements);
  const Held flat = trace_.hold("gradients of a sub-group, bf16",
                                "stage3.py _prepare_fp32_grad_for_sub_group", 2 * elements);
  const Held wide = trace_.hold("gradients of a sub-group, fp32",
                                "stage3.py _prepare_fp32_grad_for_sub_group", 4 * elements);
}

}  // namespace trireme
