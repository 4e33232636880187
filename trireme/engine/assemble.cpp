#include "trireme/engine/assemble.h"

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/device/processor.h"
#include "trireme/engine/training_engine.h"
#include "trireme/model/checkpoint_files.h"

namespace trireme {
namespace {

std::vector<FlatUnit> flat_units(const ModelLayout& layout) {
  std::vector<FlatUnit> units;
  for (const UnitSpec& unit : layout.units) {
    FlatUnit flat{unit.name, unit.elements, {}};
    for (const ParameterSpec& parameter : unit.parameters)
      flat.spans.push_back({parameter.offset, parameter.elements, parameter.decays});
    units.push_back(std::move(flat));
  }
  return units;
}

struct Dtypes {
  at::ScalarType storage;
  at::ScalarType tile;
};

Dtypes choose_dtypes(const EngineOptions& options) {
  if (options.precision == Precision::fp32) return {at::kFloat, at::kFloat};
  const bool native =
      options.bf16_matmul == Bf16Matmul::native ||
      (options.bf16_matmul == Bf16Matmul::automatic && (!options.device.is_cpu() || cpu_has_bf16_matmul()));
  return {at::kBFloat16, native ? at::kBFloat16 : at::kFloat};
}

// A tile's widest tensor (gate|up) fills a few MiB: large enough for the matmuls, small enough for the
// caches.
int64_t tile_tokens_by_rule(const ModelConfig& config, at::Device device) {
  const int64_t target_bytes = device.is_cpu() ? int64_t{24} << 20 : int64_t{256} << 20;
  const int64_t tokens = target_bytes / (2 * config.intermediate_size * 4);
  return std::clamp<int64_t>(tokens / 64 * 64, 256, 65536);
}

int64_t logits_tile_tokens_by_rule(const ModelConfig& config, at::Device device) {
  const int64_t target_bytes = device.is_cpu() ? int64_t{64} << 20 : int64_t{1} << 30;
  return std::clamp<int64_t>(target_bytes / (config.vocab_size * 4) / 16 * 16, 16, 16384);
}

// A tensor that no part of the model reads means that config.json and the weights tell of different models.
void refuse_unused(const std::vector<std::string>& names, const std::filesystem::path& model_dir) {
  if (names.empty()) return;
  std::string list;
  for (size_t at = 0; at < std::min<size_t>(names.size(), 5); ++at) list += (at == 0 ? "" : ", ") + names[at];
  throw DataError(cat(model_dir.string(), ": the weights hold ", names.size(),
                      " tensors that the model of config.json does not have: ", list,
                      names.size() > 5 ? ", ..." : "",
                      "; expected weights and config.json of the same model"));
}

std::string describe(const EngineParts& parts, const Dtypes& dtypes, int64_t tile_tokens,
                     int64_t logits_tile_tokens) {
  const auto name = [](at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; };
  const char* recompute = parts.options.recompute == Recompute::full             ? "full"
                          : parts.options.recompute == Recompute::keep_attention ? "keep_attention"
                                                                                 : "none";
  return cat("attention ", parts.attention->name(), "; values in ", name(dtypes.storage), ", matmuls in ",
             name(dtypes.tile), "; recompute ", recompute, "; tiles of ", tile_tokens, " tokens, logits of ",
             logits_tile_tokens, "; ulysses ", parts.mesh.ulysses->size(), ", data parallel ",
             parts.mesh.dp_size);
}

}  // namespace

Recompute parse_recompute(const std::string& text) {
  if (text == "full") return Recompute::full;
  if (text == "keep_attention") return Recompute::keep_attention;
  if (text == "none") return Recompute::none;
  throw ConfigError(cat("--recompute: '", text, "' is unknown; expected full, keep_attention or none"));
}

Precision parse_precision(const std::string& text) {
  if (text == "fp32") return Precision::fp32;
  if (text == "bf16") return Precision::bf16;
  throw ConfigError(cat("--precision: '", text, "' is unknown; expected fp32 or bf16"));
}

std::unique_ptr<Engine> assemble(World& world, const std::filesystem::path& model_dir,
                                 const EngineOptions& options) {
  const at::NoGradGuard no_autograd;
  auto parts = std::make_unique<EngineParts>();
  parts->config = read_model_config(model_dir);
  parts->options = options;
  const ModelConfig& config = parts->config;
  share_heads(config.num_attention_heads, config.num_key_value_heads,
              options.ulysses);  // refuses P > H early
  parts->layout = make_model_layout(config);
  parts->mesh = make_mesh(world, {.ulysses = options.ulysses, .ring = options.ring});

  const Dtypes dtypes = choose_dtypes(options);
  const CheckpointReader reader(model_dir);
  refuse_unused(reader.unused_names(parts->layout), model_dir);
  std::vector<at::Tensor> masters;
  for (const UnitSpec& unit : parts->layout.units) {
    at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
    reader.read_unit(unit, flat);
    masters.push_back(flat.to(options.device));
  }
  const auto units = flat_units(parts->layout);
  parts->parameters = std::make_unique<ReplicatedParameters>(std::move(masters), dtypes.tile);
  parts->gradients = std::make_unique<ReplicatedGradients>(units, *parts->mesh.all, options.device);
  parts->activations = std::make_unique<DeviceActivationStore>(config.num_hidden_layers);
  const OptimizerOptions& optimizer = options.optimizer;
  parts->optimizer = optimizer.kind == OptimizerKind::sgd
                         ? make_sgd(units, optimizer.weight_decay)
                         : make_adamw(units, {optimizer.beta1, optimizer.beta2, optimizer.epsilon},
                                      optimizer.weight_decay, options.device);

  const int64_t tile_tokens =
      options.tile_tokens > 0 ? options.tile_tokens : tile_tokens_by_rule(config, options.device);
  const int64_t logits_tile_tokens = options.logits_tile_tokens > 0
                                         ? options.logits_tile_tokens
                                         : logits_tile_tokens_by_rule(config, options.device);
  parts->attention = make_local_attention(options.attention, options.device, dtypes.storage);
  parts->layers = std::make_unique<LayerRunner>(config, *parts->mesh.ulysses, *parts->attention,
                                                options.recompute, tile_tokens);
  parts->walk = std::make_unique<ModelWalk>(
      config, parts->layout, *parts->mesh.ulysses, *parts->layers, *parts->parameters,
      WalkSettings{options.device, dtypes.storage, logits_tile_tokens, options.strict_divisible});
  parts->description = describe(*parts, dtypes, tile_tokens, logits_tile_tokens);
  return std::make_unique<TrainingEngine>(std::move(parts));
}

}  // namespace trireme
