#include "trireme/engine/assemble.h"

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/device/memory_budget.h"
#include "trireme/engine/agree_on_memory_fit.h"
#include "trireme/engine/agree_on_recompute.h"
#include "trireme/engine/check_options.h"
#include "trireme/engine/deferred_updates.h"
#include "trireme/engine/load_weights.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/engine/model_executor.h"
#include "trireme/engine/parameters_in_update.h"
#include "trireme/forecast/tile_rules.h"
#include "trireme/kernels/nearest_keys.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/memory/make_activation_store.h"
#include "trireme/model/adapter_layout.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/lora_files.h"
#include "trireme/shard/optimizer.h"
#include "trireme/shard/parameter_store.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

std::vector<FlatUnit> flat_units(const std::vector<UnitSpec>& specs, int ranks) {
  std::vector<FlatUnit> units;
  for (const UnitSpec& unit : specs) {
    FlatUnit flat{unit.name, padded_elements(unit.elements, ranks), {}};
    for (const ParameterSpec& parameter : unit.parameters)
      flat.spans.push_back(
          {parameter.offset, parameter.elements, parameter.decays, parameter.name, parameter.shape});
    units.push_back(std::move(flat));
  }
  return units;
}

// Of what layers multiply, and of the values: the same on all ranks, between which they travel, and which may
// have other processors. Collective.
at::ScalarType choose_tile_dtype(const EngineOptions& options, Group& all) {
  const bool cpu_multiplies_bf16 =
      options.device.is_cpu() && !Agreement(all, options.device).any(!processor_bf16_units());
  return multiplies_16_bit(options.precision, options.bf16_matmul, !options.device.is_cpu(),
                           cpu_multiplies_bf16)
             ? storage_dtype(options.precision)
             : at::kFloat;
}

struct Tiles {
  int64_t tokens, logits_tokens;
};

Tiles choose_tiles(const EngineOptions& options, const ModelSizes& model) {
  const bool on_gpu = !options.device.is_cpu();
  return {options.tile_tokens > 0 ? options.tile_tokens : tile_tokens_by_rule(model, on_gpu),
          options.logits_tile_tokens > 0 ? options.logits_tile_tokens
                                         : logits_tile_tokens_by_rule(model.vocab, on_gpu)};
}

std::unique_ptr<LocalAttention> choose_attention(const EngineOptions& options, at::ScalarType storage,
                                                 Scores scores) {
  auto attention =
      make_local_attention(options.attention, options.device, storage, SampleLengths::few, scores);
  if (options.nearest_keys <= 0) return attention;
  return std::make_unique<NearestKeysAttention>(std::move(attention), options.nearest_keys);
}

std::shared_ptr<CopyStream> copy_stream_for(Offload offload, at::Device device) {
  return device.is_cpu() || offload == Offload::none ? nullptr : make_copy_stream(device);
}

// Positions are what --rope_scaling and --rope_theta say; else of an adapter that Trireme trained those with which
// it was. Training with others than these is asked for by name.
ModelConfig config_of(const fs::path& model_dir, const EngineOptions& options,
                      const ModelFamilies& families) {
  const ModelConfig model = read_model_config(model_dir, families);
  const fs::path& adapter = options.lora.adapter;
  if (adapter.empty()) return with_rope(model, options.rope);
  ModelConfig trained = with_positions_of_adapter(model, adapter);  // refuses that of another model
  if (options.rope.given()) return with_rope(model, options.rope);
  if (options.purpose == Purpose::training && rope_text(trained) != rope_text(model))
    throw ConfigError(cat("--adapter ", adapter.string(), " was trained with ", rope_text(trained),
                          ", and the model has ", rope_text(model),
                          "; give the --rope_scaling and --rope_theta that are meant"));
  return trained;
}

}  // namespace

// The stores of parameters, gradients and the optimizer's state.
void Engine::make_stores(at::ScalarType tile_dtype) {
  const OffloadOptions& offload = options_.offload;
  if (!options_.device.is_cpu() &&
      (offload.parameters != Offload::none || offload.optimizer != Offload::none))
    pinned_ = std::make_shared<PinnedPool>(make_host_pinning(options_.device));
  const std::vector<FlatUnit> units = flat_units(layout_.trained(), mesh_.all->size());
  make_parameters(units, tile_dtype);
  if (options_.purpose == Purpose::evaluation) return;
  if (offload.optimizer != Offload::none) {
    updates_ = std::make_unique<DeferredUpdates>(memory_, options_.device, units.size());
    parameters_in_update_ = std::make_unique<ParametersInUpdate>(*parameters_, *updates_);
  }
  make_gradients(units);
  make_optimizer(units);
}

void Engine::make_parameters(const std::vector<FlatUnit>& units, at::ScalarType tile_dtype) {
  const EngineOptions& options = options_;
  Group& all = *mesh_.all;
  const bool shard = options.zero != ZeroStage::none;
  const ParameterSettings parameters{tile_dtype,
                                     options.device,
                                     options.offload.parameters,
                                     options.offload.optimizer,
                                     spill_.get(),
                                     options.purpose == Purpose::training,
                                     copy_stream_for(options.offload.parameters, options.device),
                                     pinned_};
  const auto make = [&](const std::vector<FlatUnit>& of, const ParameterSettings& settings,
                        bool shard_masters) {
    return options.zero == ZeroStage::parameters
               ? make_sharded_parameters(of, all, settings)
               : make_replicated_parameters(of, all, shard_masters, settings);
  };
  if (!layout_.adapted()) {
    parameters_ = make(units, parameters, shard);
    return;
  }
  ParameterSettings of_model = parameters, of_adapters = parameters;
  of_model.masters = false;
  of_model.optimizer = Offload::none;  // nothing of it is stepped
  frozen_ = make(flat_units(layout_.units, all.size()), of_model, false);
  // Whole on every rank's device: they are small, or an embedding of which every rank looks up rows.
  of_adapters.parameters = Offload::none;
  of_adapters.copies = nullptr;
  parameters_ = make_replicated_parameters(units, all, shard, of_adapters);
}

void Engine::make_gradients(const std::vector<FlatUnit>& units) {
  Group& all = *mesh_.all;
  const bool shard = options_.zero != ZeroStage::none;
  const auto copies = copy_stream_for(options_.offload.optimizer, options_.device);
  const GradientSettings gradients{
      options_.device, options_.reduce_dtype,
      sums_go_beside_backward(forecast_inputs_) ? SumsFinish::one_unit_later : SumsFinish::at_close, copies,
      copies ? pinned_ : nullptr};
  if (options_.update_in_backward) {
    gradients_ = make_gradients_summed_at_close(
        units, all, shard, gradients,
        [this](int unit, at::Tensor gradient) { step_in_backward(unit, std::move(gradient)); });
  } else {
    gradients_ = options_.zero == ZeroStage::none || options_.zero == ZeroStage::optimizer
                     ? make_whole_gradients(units, all, shard, gradients)
                     : make_gradients_summed_at_close(units, all, shard, gradients);
  }
}

void Engine::make_optimizer(const std::vector<FlatUnit>& units) {
  const OptimizerOptions& optimizer = options_.optimizer;
  const int ranks = mesh_.all->size();
  if (optimizer.kind->whole_parameters && options_.zero != ZeroStage::none && ranks > 1)
    throw ConfigError(cat("--optim ", optimizer.kind->name, " steps whole matrices, which --zero ",
                          static_cast<int>(options_.zero), " cuts over ", ranks,
                          " ranks; give --zero 0, or another --optim"));
  optimizer_ = optimizer.kind->make(
      *optimizer.kind, cut_units(units, parameters_->shares()),
      {optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay, optimizer.state_dtype,
       optimizer.seed, options_.device, options_.offload.optimizer, spill_.get()});
  if (options_.precision == Precision::fp16) loss_scaler_ = std::make_unique<LossScaler>(options_.loss_scale);
}

void Engine::read_weights(const CheckpointReader& reader, const ModelLayout& files, ParameterStore& store) {
  const at::Device device = options_.device;
  const std::shared_ptr<PinnedPool> buffers =
      device.is_cpu() || pinned_ ? pinned_ : std::make_shared<PinnedPool>(make_host_pinning(device));
  load_weights(reader, files, store, {*mesh_.all, device, buffers.get()});
}

// First values of what is trained, the same on every rank: of a folder; else LoRA's matrices are drawn, and what is
// trained whole begins as it is in the model.
void Engine::read_adapters(const CheckpointReader& model) {
  Agreement agreement = this->agreement();
  if (const fs::path& folder = options_.lora.adapter; !folder.empty()) {
    std::optional<CheckpointReader> reader;
    const ModelLayout files = layout_of_adapter_files(layout_);
    agreement.all_or_none(cat("reading ", folder.string()), [&] {
      reader.emplace(open_adapter(folder));
      refuse_unused(reader->unused_names(files), ModelLayout{}, folder, kAdapterConfigFile);
    });
    return read_weights(*reader, files, *parameters_);
  }
  for (int unit = 0; unit < unit_count(); ++unit) {
    const UnitSpec& spec = layout_.trained()[static_cast<size_t>(unit)];
    if (layout_.adapters.matrices[static_cast<size_t>(unit)].empty()) continue;
    at::Tensor padded;
    agreement.all_or_none("drawing the first adapters", [&] {
      padded = at::zeros({padded_elements(spec.elements, mesh_.all->size())}, at::kFloat);
      padded.narrow(0, 0, spec.elements).copy_(initial_adapter_values(spec, options_.lora.seed));
    });
    const UnitShare& share = parameters_->shares()[static_cast<size_t>(unit)];
    parameters_->open_master(unit).set(padded.narrow(0, share.begin, share.elements));
    parameters_->close_master(unit);
  }
  if (!lora_.modules_to_save.empty())
    read_weights(model, layout_of_whole_parameters(layout_.adapters), *parameters_);
}

// Attention, layers and the pass over them, on the stores.
void Engine::make_executor() {
  const at::ScalarType storage = storage_dtype(options_.precision);
  // Products of 16-bit factors are added up in fp32, over the pieces of a sum that cuBLAS splits as well.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  const ScoreForm scores{config_.softmax_scale(), config_.score_cap};
  local_attention_ = choose_attention(options_, storage, scores.kind());
  const auto attention_of = [&](const AttentionHeads& heads) {
    return make_sharded_attention(
        *mesh_.ulysses, make_sequence_attention(options_.ring_method, *mesh_.ring, *local_attention_),
        share_heads(heads.query, heads.key_value, mesh_.ulysses->size()), scores, options_.head_chunks);
  };
  attention_ = attention_of(config_.heads());
  if (config_.full_heads) full_attention_ = attention_of(*config_.full_heads);
  if (config_.delta_net)
    delta_net_ =
        std::make_unique<ShardedDeltaNet>(*mesh_.sp, config_.delta_net->heads, *config_.family->mixing);
  layers_ = std::make_unique<LayerRunner>(config_,
                                          LayerMixing{*attention_, full_attention_.get(), delta_net_.get()},
                                          forecast_inputs_.recompute, forecast_inputs_.tile_tokens);
  ParameterStore& trained = parameters_in_update_ ? *parameters_in_update_ : *parameters_;
  executor_ = std::make_unique<ModelExecutor>(
      config_, layout_, mesh_, *layers_, frozen_ ? *frozen_ : trained,
      ExecutorSettings{options_.device, storage, forecast_inputs_.logits_tile_tokens,
                       options_.strict_divisible, options_.ring_method, options_.sparse},
      frozen_ ? &trained : nullptr);
}

Engine::Engine(World& world, const std::filesystem::path& model_dir, const EngineOptions& options,
               const ModelFamilies& families)
    : options_(options), memory_(make_rank_memory(options.device)) {
  const at::NoGradGuard no_autograd;
  const RankMemoryScope counted(memory_);
  release_cached_memory(options.device);  // of an earlier engine, before any rank looks at what is left
  config_ = config_of(model_dir, options, families);
  check_engine_options(options);
  const ModelConfig& config = config_;
  check_heads(options, config);
  layout_ = make_model_layout(config);
  lora_ = add_adapters(layout_, config, options.lora);
  mesh_ = make_mesh(world, {.ulysses = options.ulysses, .ring = options.ring},
                    {.columns = config.delta_net.has_value(),
                     .gathered_keys = options.ring_method == RingMethod::gather,
                     .blocks_of_sums = at::elementSize(options.reduce_dtype) < kFloat_bytes});

  const at::ScalarType storage = storage_dtype(options.precision);
  const at::ScalarType tile = choose_tile_dtype(options, *mesh_.all);
  check_stored_states(options, tile);
  const Tiles tiles = choose_tiles(options, model_sizes(config, layout_));
  forecast_inputs_ = make_forecast_inputs(config, layout_, options, mesh_,
                                          {storage, tile, tiles.tokens, tiles.logits_tokens});
  connect_exchanges(mesh_, options.device);
  const std::optional<RankBudget> budget = rank_budget(world, *mesh_.all, forecast_inputs_, options_);
  recompute_choice_ = agree_on_recompute(*mesh_.all, budget, forecast_inputs_, options_);
  forecast_inputs_.recompute = options_.recompute;
  memory_fit_ = agree_on_memory_fit(*mesh_.all, budget, forecast_inputs_, options_);

  std::optional<CheckpointReader> reader;
  if (options.read_weights || layout_.adapted()) {
    reader.emplace(model_dir);
    refuse_unused(reader->unused_names(layout_), layout_, model_dir);
  }
  if (uses_disk(options.offload))
    spill_ = std::make_unique<SpillFile>(options.offload.folder, options.offload.limit_bytes);
  make_stores(tile);
  const double reading_begins = now_seconds();
  if (reader) read_weights(*reader, layout_, frozen_ ? *frozen_ : *parameters_);
  if (options.read_weights && layout_.adapted()) read_adapters(*reader);
  if (reader) weights_read_ = {reader->read_bytes(), now_seconds() - reading_begins};
  activations_ = make_activation_store(config.num_hidden_layers, options.device, options.offload.activations,
                                       spill_.get(), forecast_inputs_.resident_layers);
  make_executor();
  memory_.account->reset_peaks();  // loading is over
}

std::unique_ptr<Engine> assemble(World& world, const std::filesystem::path& model_dir,
                                 const EngineOptions& options, const ModelFamilies& families) {
  return std::unique_ptr<Engine>(new Engine(world, model_dir, options, families));
}

}  // namespace trireme
