#include "bench/comm/exchange_rate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>

#include "trireme/attention/ulysses.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/call_time.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/mesh.h"

#include "bench/comm/megatron_exchanges.h"

namespace trireme {
namespace {

int64_t hidden_of(const ExchangeRateOptions& options) {
  return options.hidden > 0 ? options.hidden : options.heads * options.head_dim;
}

ExchangeExtents extents_of(const ExchangeRateOptions& options) {
  return {.batch = options.batch,
          .head_dim = options.head_dim,
          .element_bytes = static_cast<int64_t>(c10::elementSize(options.dtype)),
          .sum_bytes =
              static_cast<int64_t>(c10::elementSize(options.dtype == at::kDouble ? at::kDouble : at::kFloat)),
          .head_chunks = options.head_chunks};
}

SampleLayout layout_of(const MethodPartition& shape, const ExchangeRateOptions& options) {
  return {.tokens = options.tokens, .ulysses = shape.ulysses, .ring = shape.ring};
}

RingMethod ring_method_of(const MethodPartition& shape) {
  return shape.method == ExchangeMethod::gather ? RingMethod::gather : shape.ring_method;
}

// Random tensors, different on each rank.
class Noise {
 public:
  Noise(const ExchangeRateOptions& options, int rank)
      : options_(options), generator_(at::detail::createCPUGenerator(static_cast<uint64_t>(rank))) {}
  at::Tensor operator()(const std::vector<int64_t>& sizes) {
    return at::randn(sizes, generator_, at::TensorOptions().dtype(at::kFloat))
        .to(at::TensorOptions(options_.device).dtype(options_.dtype));
  }

 private:
  const ExchangeRateOptions& options_;
  at::Generator generator_;
};

// One method on one rank, with the tensors that it works on.
class MeasuredLayer {
 public:
  virtual ~MeasuredLayer() = default;
  MeasuredLayer& operator=(MeasuredLayer&&) = delete;
  virtual void forward() = 0;
  virtual void backward() = 0;
};

class SequenceParallelLayer : public MeasuredLayer {
 public:
  SequenceParallelLayer(const Mesh& mesh, const MethodPartition& shape, const ExchangeRateOptions& options,
                        LocalAttention& local)
      : attention_(make_sharded_attention(
            *mesh.ulysses, make_sequence_attention(ring_method_of(shape), *mesh.ring, local),
            share_heads(options.heads, options.kv_heads, shape.ulysses),
            {.scale = 1 / std::sqrt(static_cast<double>(options.head_dim))}, options.head_chunks)),
        mask_(
            make_sequence_mask({}, {}, layout_of(shape, options), mesh.ring->rank(), ring_method_of(shape))) {
    Noise noise(options, mesh.sp->rank());
    const int64_t tokens = mask_.layout.size(mesh.sp->rank());
    qkv_ = noise({options.batch, tokens, options.heads + 2 * options.kv_heads, options.head_dim});
    d_o_ = noise({options.batch, tokens, options.heads, options.head_dim});
  }

  // As a layer that keeps o and its log-sum-exp.
  void forward() override {
    saved_ = attention_->forward(attention_->exchange_qkv(qkv_, mask_), mask_);
    saved_.o_BShD = at::Tensor();
  }
  void backward() override {
    attention_->backward(d_o_, attention_->exchange_qkv(qkv_, mask_), std::exchange(saved_, {}), mask_);
  }

 private:
  std::unique_ptr<ShardedAttention> attention_;
  SequenceMask mask_;
  at::Tensor qkv_, d_o_;
  ShardedOutput saved_;
};

class MegatronLayer : public MeasuredLayer {
 public:
  MegatronLayer(const Mesh& mesh, const ExchangeRateOptions& options, LocalAttention& local)
      : group_(*mesh.sp), layout_{options.tokens, mesh.sp->size()}, local_(local) {
    const HeadShares heads = share_heads(options.heads, options.kv_heads, group_.size());
    const int rank = group_.rank();
    const int64_t query = heads.query.at(static_cast<size_t>(rank)).size();
    const int64_t key_value = heads.key_value.at(static_cast<size_t>(rank)).size();
    spec_.scores.scale = 1 / std::sqrt(static_cast<double>(options.head_dim));
    spec_.keys = causal_keys(options.tokens);
    spec_.kv_of_query = heads.kv_of_query(rank);
    Noise noise(options, rank);
    q_ = noise({options.batch, options.tokens, query, options.head_dim});
    k_ = noise({options.batch, options.tokens, key_value, options.head_dim});
    v_ = noise(k_.sizes().vec());
    d_o_ = noise(q_.sizes().vec());
    x_ = noise({layout_.size(rank), options.batch, hidden_of(options)});
    dz_ = noise(x_.sizes().vec());
    // The heads are those of a projection that is left out, and so is what would follow: the parts that
    // travel are as large as they would be, and have x's values.
    blocks_.attention.forward = [this](const at::Tensor& x) {
      saved_attention_ = local_.forward(q_, k_, v_, spec_);
      return x;
    };
    blocks_.attention.backward = [this](const at::Tensor& /*x*/, const at::Tensor& d_out) {
      local_.backward(d_o_, q_, k_, v_, saved_attention_, spec_);
      return d_out;
    };
    blocks_.mlp.forward = [](const at::Tensor& x) { return x; };
    blocks_.mlp.backward = [](const at::Tensor& /*x*/, const at::Tensor& d_out) { return d_out; };
  }

  void forward() override { saved_ = megatron_layer_forward(group_, layout_, blocks_, x_).saved; }
  void backward() override {
    megatron_layer_backward(group_, layout_, blocks_, dz_, saved_);
    saved_ = {};
    saved_attention_ = {};
  }

 private:
  Group& group_;
  SequenceLayout layout_;
  LocalAttention& local_;
  MegatronBlocks blocks_;
  AttentionSpec spec_;
  at::Tensor q_, k_, v_, d_o_, x_, dz_;
  AttentionOutput saved_attention_;
  MegatronSaved saved_;
};

// What this rank sent since the counters were last read, over the groups that a layer exchanges in.
Traffic take_traffic(const Mesh& mesh) {
  Traffic sum;
  for (Group* group : {mesh.sp.get(), mesh.ring.get(), mesh.ulysses.get()}) {
    for (const auto& [name, traffic] : group->traffic()) {
      sum.calls += traffic.calls;
      sum.sent_bytes += traffic.sent_bytes;
      sum.seconds += traffic.seconds;
    }
    group->reset_traffic();
  }
  return sum;
}

}  // namespace

ExchangeMethod parse_exchange_method(const std::string& text) {
  if (const auto method = value_named<ExchangeMethod>(text)) return *method;
  throw ConfigError(cat("there is no exchange method '", quotation(text), "'; expected some of ",
                        joined(enum_names(ExchangeMethod{}), ", ", &EnumName<ExchangeMethod>::name)));
}

std::string MethodPartition::description() const {
  if (method != ExchangeMethod::hybrid) return cat(name_of(method), " ", ranks());
  return cat("hybrid ", ulysses, "x", ring, ring_method == RingMethod::gather ? " (gather)" : "");
}

MethodPartition partition_over(ExchangeMethod method, int ranks, int hybrid_ulysses,
                               RingMethod hybrid_ring_method) {
  if (method == ExchangeMethod::hybrid) {
    const int ulysses = std::gcd(ranks, hybrid_ulysses);
    return {method, ulysses, ranks / ulysses, hybrid_ring_method};
  }
  const bool around = method == ExchangeMethod::ring || method == ExchangeMethod::gather;
  return around ? MethodPartition{method, 1, ranks} : MethodPartition{method, ranks, 1};
}

int most_hybrid_ulysses(int ranks, int64_t query_heads) {
  for (int ulysses = ranks / 2; ulysses > 1; --ulysses)
    if (ranks % ulysses == 0 && ulysses <= query_heads) return ulysses;
  return 0;
}

ExchangeBytes formula_bytes(const MethodPartition& shape, const ExchangeRateOptions& options, int rank) {
  const ExchangeExtents extents = extents_of(options);
  const SampleLayout layout = layout_of(shape, options);
  if (shape.method == ExchangeMethod::megatron)
    return megatron_exchange_bytes(options.batch, hidden_of(options), extents.element_bytes,
                                   {options.tokens, shape.ranks()}, rank);
  const HeadShares heads = share_heads(options.heads, options.kv_heads, shape.ulysses);
  const ExchangeBytes around = ring_method_of(shape) == RingMethod::gather
                                   ? gather_exchange_bytes(extents, layout, heads, rank)
                                   : ring_exchange_bytes(extents, layout, heads, rank);
  return ulysses_exchange_bytes(extents, layout, heads, rank).layer() + around;
}

ExchangeBytes most_formula_bytes(const MethodPartition& shape, const ExchangeRateOptions& options) {
  ExchangeBytes most;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const ExchangeBytes one = formula_bytes(shape, options, rank);
    most.forward = std::max(most.forward, one.forward);
    most.backward = std::max(most.backward, one.backward);
  }
  return most;
}

void check_formula(const std::string& what, const ExchangeBytes& measured, const ExchangeBytes& formula) {
  if (measured == formula) return;
  throw InternalError(cat(what, ": sent ", measured.forward, " bytes forward and ", measured.backward,
                          " backward, by formula ", formula.forward, " and ", formula.backward,
                          " (trireme/attention/exchange_bytes.h)"));
}

ExchangeRate measure_exchange_rate(World& world, const MethodPartition& shape,
                                   const ExchangeRateOptions& options) {
  TRIREME_ASSERT(world.size() == shape.ranks(), "world of ", world.size(), " ranks for ",
                 shape.description());
  const at::NoGradGuard no_grad;
  const bool megatron = shape.method == ExchangeMethod::megatron;
  const Mesh mesh = make_mesh(world, {.ulysses = shape.ulysses, .ring = shape.ring});
  const std::unique_ptr<LocalAttention> local =
      make_local_attention(options.attention, options.device, options.dtype);
  const std::unique_ptr<MeasuredLayer> layer =
      megatron ? std::unique_ptr<MeasuredLayer>(std::make_unique<MegatronLayer>(mesh, options, *local))
               : std::make_unique<SequenceParallelLayer>(mesh, shape, options, *local);

  ExchangeRate rate;
  rate.shape = shape;
  const ExchangeBytes formula = formula_bytes(shape, options, mesh.sp->rank());
  std::vector<double> layer_seconds, exchange_seconds;
  for (int64_t repeat = -1; repeat < options.repeats; ++repeat) {  // the first one warms up
    wait_for_stream(options.device);
    barrier(*mesh.all);
    take_traffic(mesh);
    const double begin = now_seconds();
    layer->forward();
    const Traffic forward = take_traffic(mesh);
    layer->backward();
    wait_for_stream(options.device);
    const double end = now_seconds();
    const Traffic backward = take_traffic(mesh);
    rate.sent = {forward.sent_bytes, backward.sent_bytes};
    rate.forward_calls = forward.calls;
    rate.backward_calls = backward.calls;
    check_formula(cat(shape.description(), ", rank ", mesh.sp->rank()), rate.sent, formula);
    if (repeat < 0) continue;
    layer_seconds.push_back(end - begin);
    exchange_seconds.push_back(forward.seconds + backward.seconds);
  }

  Agreement agreement(*mesh.all, options.device);
  rate.layer_seconds = spread_of(agreement.largest(layer_seconds));
  rate.exchange_seconds = spread_of(agreement.largest(exchange_seconds));
  rate.forward_calls = agreement.largest(rate.forward_calls);
  rate.backward_calls = agreement.largest(rate.backward_calls);
  rate.most_sent = {agreement.largest(rate.sent.forward), agreement.largest(rate.sent.backward)};
  rate.most_formula = most_formula_bytes(shape, options);
  check_formula(shape.description() + ", the rank that sends most", rate.most_sent, rate.most_formula);
  return rate;
}

}  // namespace trireme
