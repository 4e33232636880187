#include "tests/engine/tiny_model.h"

#include <ATen/CPUGeneratorImpl.h>

#include "trireme/model/checkpoint_files.h"

namespace trireme::testing {

Json tiny_llama_config(int64_t query_heads, int64_t key_value_heads) {
  return Json{{"model_type", "llama"},
              {"architectures", {"LlamaForCausalLM"}},
              {"hidden_size", 8 * query_heads},
              {"intermediate_size", 48},
              {"num_hidden_layers", 2},
              {"num_attention_heads", query_heads},
              {"num_key_value_heads", key_value_heads},
              {"head_dim", 8},
              {"vocab_size", 70},
              {"max_position_embeddings", 512},
              {"rms_norm_eps", 1e-5},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", false},
              {"rope_theta", 10000.0}};
}

void write_tiny_model(const std::filesystem::path& folder, const Json& config, double spread) {
  const ModelConfig parsed = parse_model_config(config, "test config");
  const ModelLayout layout = make_model_layout(parsed);
  write_checkpoint(
      folder, parsed, layout,
      [&](int unit) {
        const UnitSpec& spec = layout.units[static_cast<size_t>(unit)];
        at::Tensor flat = at::zeros({spec.elements});
        for (const ParameterSpec& parameter : spec.parameters) {
          auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>{}(parameter.name));
          at::Tensor view = parameter_view(flat, parameter);
          view.normal_(
              parameter.shape.size() == 1 && parameter.name.find("norm") != std::string::npos ? 1.0 : 0.0,
              spread, generator);
        }
        return flat;
      },
      at::kFloat, {});
}

TokenBatch slice_of_batch(int64_t batch, int64_t tokens, int64_t vocabulary, uint64_t seed, int ranks,
                          int rank) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor ids = at::randint(0, vocabulary, {batch, tokens}, generator, at::kLong);
  at::Tensor targets = at::randint(0, vocabulary, {batch, tokens}, generator, at::kLong);
  targets.masked_fill_(at::rand({batch, tokens}, generator, at::kFloat).lt(0.2), kIgnoredLabel);
  TokenBatch result;
  result.layout = {tokens, ranks};
  const int64_t begin = result.layout.begin(rank), size = result.layout.size(rank);
  result.tokens = ids.narrow(1, begin, size).contiguous();
  result.targets = targets.narrow(1, begin, size).contiguous();
  return result;
}

std::map<std::string, at::Tensor> all_gradients(Engine& engine) {
  std::map<std::string, at::Tensor> gradients;
  const ModelLayout& layout = engine.layout();
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const at::Tensor whole = engine.unit_gradient(static_cast<int>(unit)).clone();
    for (const ParameterSpec& parameter : layout.units[unit].parameters)
      gradients[parameter.name] = parameter_view(whole, parameter);
  }
  return gradients;
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return (x - y).abs().max().item<double>() / y.abs().max().item<double>();
}

}  // namespace trireme::testing
