#include "tests/engine/watched_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/model_executor.h"
#include "trireme/memory/make_activation_store.h"
#include "trireme/model/checkpoint_files.h"

#include "tests/engine/tiny_model.h"

namespace trireme::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Hands out a copy until release, and spoils it then.
class WatchedParameters final : public ParameterStore {
 public:
  WatchedParameters(const ModelLayout& layout, std::vector<at::Tensor> values, PassRecord& record)
      : layout_(layout), values_(std::move(values)), record_(record) {}

  at::Tensor gather(int unit) override {
    EXPECT_EQ(held_.count(unit), 0) << "unit " << unit << " was gathered twice";
    // A tied head uses two units; everything else one.
    const bool second_of_head =
        layout_.tied && unit == kEmbeddingUnit && held_.count(layout_.head_unit()) == 1;
    EXPECT_EQ(held_.size(), second_of_head ? 1 : 0) << "gathering unit " << unit;
    if (record_.gathers > 0) {
      EXPECT_EQ(prefetched_, unit);
    }
    prefetched_.reset();
    ++record_.gathers;
    return held_[unit] = values_.at(static_cast<size_t>(unit)).clone();
  }
  void prefetch(int unit) override {
    EXPECT_FALSE(prefetched_) << "unit " << *prefetched_ << " was prefetched and not used";
    EXPECT_FALSE(held_.empty());
    EXPECT_EQ(held_.count(unit), 0) << "unit " << unit << " is there";
    prefetched_ = unit;
    ++record_.prefetches;
  }
  void release(int unit) override {
    ASSERT_EQ(held_.count(unit), 1) << "unit " << unit << " was released and not held";
    held_.at(unit).fill_(kNan);
    held_.erase(unit);
  }
  const std::vector<UnitShare>& shares() const override { return shares_; }
  MasterShare open_master(int) override { return {}; }
  void close_master(int) override {}
  at::Tensor whole_master(int) override { return {}; }

  void expect_nothing_left() const {
    EXPECT_TRUE(held_.empty());
    EXPECT_FALSE(prefetched_);
  }

  // `matrix` met `rows` tokens; counted when it lies in a unit that is held.
  void count_product(const at::Tensor& matrix, int64_t rows) {
    const auto* at = static_cast<const char*>(matrix.const_data_ptr());
    for (const auto& [unit, flat] : held_) {
      const int64_t offset = at - static_cast<const char*>(flat.const_data_ptr());
      if (offset >= 0 && offset < static_cast<int64_t>(flat.nbytes()))
        record_.forward_products[{unit, offset}] += static_cast<double>(rows);
    }
  }

 private:
  const ModelLayout& layout_;
  std::vector<at::Tensor> values_;
  std::map<int, at::Tensor> held_;
  std::optional<int> prefetched_;
  PassRecord& record_;
  const std::vector<UnitShare> shares_ = {};
};

// Takes each unit's gradient at its only close, and spoils the buffer.
class WatchedGradients final : public GradientStore {
 public:
  WatchedGradients(const ModelLayout& layout, PassRecord& record) : layout_(layout), record_(record) {
    record.gradients.resize(layout.units.size());
  }

  void begin_last_micro_batch() override { ADD_FAILURE() << "the executor knows one micro-batch"; }
  OpenGradient open(int unit) override {
    EXPECT_FALSE(record_.gradients.at(static_cast<size_t>(unit)).defined())
        << "unit " << unit << " is closed";
    at::Tensor& buffer = open_[unit];
    const SumState state = buffer.defined() ? SumState::begun : SumState::undefined;
    if (state == SumState::undefined)
      buffer = at::full({layout_.units[static_cast<size_t>(unit)].elements}, kNan);
    return {buffer, state};
  }
  void close(int unit) override {
    ASSERT_EQ(open_.count(unit), 1) << "unit " << unit;
    record_.gradients.at(static_cast<size_t>(unit)) = open_.at(unit).clone();
    open_.at(unit).fill_(kNan);
    open_.erase(unit);
  }
  void finish() override {}
  at::Tensor summed(int) override { return {}; }
  at::Tensor squares(int) override { return {}; }
  at::Tensor whole(int) override { return {}; }
  bool sharded() const override { return false; }
  void multiply(double) override { ADD_FAILURE() << "the executor multiplies no gradients"; }
  void clear() override {}

  void expect_all_closed() const {
    EXPECT_TRUE(open_.empty());
    for (const at::Tensor& gradient : record_.gradients) EXPECT_TRUE(gradient.defined());
  }

 private:
  const ModelLayout& layout_;
  std::map<int, at::Tensor> open_;
  PassRecord& record_;
};

class WatchedActivations final : public ActivationStore {
 public:
  WatchedActivations(int64_t layers, PassRecord& record)
      : store_(make_activation_store(layers, at::kCPU, Offload::none, nullptr)), record_(record) {}
  void put(int64_t layer, Saved saved) override {
    held_bytes_ += bytes_of(saved);
    record_.kept_bytes = std::max(record_.kept_bytes, held_bytes_);
    store_->put(layer, std::move(saved));
  }
  Saved take(int64_t layer) override {
    Saved saved = store_->take(layer);
    held_bytes_ -= bytes_of(saved);
    return saved;
  }
  int64_t held_bytes() const { return held_bytes_; }

 private:
  static int64_t bytes_of(const Saved& saved) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : saved)
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }

  std::unique_ptr<ActivationStore> store_;
  int64_t held_bytes_ = 0;
  PassRecord& record_;
};

class CountedAttention final : public LocalAttention {
 public:
  CountedAttention(at::ScalarType dtype, PassRecord& record)
      : attention_(make_local_attention(AttentionKernel::automatic, at::kCPU, dtype)), record_(record) {}
  std::string name() const override { return attention_->name(); }
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionSpec& spec) override {
    ++record_.attention_forwards;
    return attention_->forward(q, k, v, spec);
  }
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const AttentionSpec& spec) override {
    return attention_->backward(d_o, q, k, v, saved, spec);
  }

 private:
  std::unique_ptr<LocalAttention> attention_;
  PassRecord& record_;
};

// libtorch's callback is a plain function, so it finds its store here.
thread_local WatchedParameters* matmul_watcher = nullptr;

// Forward products alone read a weight matrix transposed.
std::unique_ptr<at::ObserverContext> see_matmul(const at::RecordFunction& function) {
  const std::string name = function.name();
  const bool mm = name == "aten::mm", addmm = name == "aten::addmm" || name == "aten::addmm_";
  if (!mm && !addmm) return nullptr;
  const auto inputs = function.inputs();
  const at::Tensor& left = inputs[mm ? 0 : 1].toTensor();
  const at::Tensor& right = inputs[mm ? 1 : 2].toTensor();
  if (right.stride(0) == 1 && right.stride(1) > 1) matmul_watcher->count_product(right, left.size(0));
  return nullptr;
}

class MatmulWatch {
 public:
  explicit MatmulWatch(WatchedParameters& parameters) {
    matmul_watcher = &parameters;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(see_matmul).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~MatmulWatch() {
    at::removeCallback(handle_);
    matmul_watcher = nullptr;
  }
  MatmulWatch& operator=(MatmulWatch&&) = delete;

 private:
  at::CallbackHandle handle_;
};

std::vector<at::Tensor> read_units(const std::filesystem::path& folder, const ModelLayout& layout,
                                   at::ScalarType dtype) {
  const CheckpointReader reader(folder);
  std::vector<at::Tensor> units;
  for (const UnitSpec& unit : layout.units) {
    at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
    reader.read_unit(unit, flat);
    units.push_back(flat.to(dtype));
  }
  return units;
}

void run_rank_pass(World& world, const std::filesystem::path& folder, const WatchedRun& run,
                   const RecomputePlan& plan, PassRecord& record) {
  const at::NoGradGuard no_autograd;
  at::set_num_threads(1);  // passes of a millisecond gain nothing from more
  const ModelConfig config = read_model_config(folder);
  const ModelLayout layout = make_model_layout(config);
  const Mesh mesh = make_mesh(world, {.ulysses = run.ranks});
  WatchedParameters parameters(layout, read_units(folder, layout, run.compute), record);
  WatchedGradients gradients(layout, record);
  WatchedActivations activations(config.num_hidden_layers, record);
  CountedAttention attention(run.storage, record);
  const auto sharded_with = [&](const AttentionHeads& heads) {
    return make_sharded_attention(
        *mesh.ulysses, make_sequence_attention(RingMethod::ring, *mesh.ring, attention),
        share_heads(heads.query, heads.key_value, run.ranks),
        {.scale = 1 / std::sqrt(static_cast<double>(heads.width))}, run.head_chunks);
  };
  const auto sharded = sharded_with(config.heads());
  const auto full = config.full_heads ? sharded_with(*config.full_heads) : nullptr;
  const auto delta_net = config.delta_net ? std::make_unique<ShardedDeltaNet>(
                                                *mesh.sp, config.delta_net->heads, *config.family->mixing)
                                          : nullptr;
  LayerRunner layers(config, {*sharded, full.get(), delta_net.get()}, plan, run.tile_tokens);
  ModelExecutor executor(config, layout, mesh, layers, parameters,
                         {.storage = run.storage, .logits_tile_tokens = 23});
  const TokenBatch batch =
      slice_of_batch(run.batch, run.tokens, config.vocab_size, 7, run.ranks, mesh.ulysses->rank());
  {
    const MatmulWatch watch(parameters);
    record.loss_sum = executor.forward_backward(batch, 0.25, gradients, activations).item<double>();
  }
  parameters.expect_nothing_left();
  gradients.expect_all_closed();
  EXPECT_EQ(activations.held_bytes(), 0);
  for (const auto& [collective, traffic] : mesh.ulysses->traffic()) {
    EXPECT_EQ(collective, "all_to_all");
    record.exchanges += traffic.calls;
  }
  for (auto& [matrix, products] : record.forward_products)
    products /= static_cast<double>(batch.tokens.numel());
}

}  // namespace

std::vector<PassRecord> run_pass(const std::filesystem::path& folder, const WatchedRun& run,
                                 const RecomputePlan& plan) {
  std::vector<PassRecord> records(static_cast<size_t>(run.ranks));
  run_ranks_as_threads(run.ranks, [&](World& world) {
    run_rank_pass(world, folder, run, plan, records.at(static_cast<size_t>(world.rank())));
  });
  return records;
}

}  // namespace trireme::testing
