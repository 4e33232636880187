#include "tests/engine/bad_token_model.h"

#include "trireme/model/checkpoint_files.h"
#include "trireme/model/unit_weights.h"

#include "tests/engine/tiny_model.h"

namespace trireme::testing {

void write_bad_token_model(const std::filesystem::path& folder) {
  const TemporaryFolder plain;
  write_tiny_model(plain.path(), tiny_llama_config());
  const ModelConfig config = read_model_config(plain.path());
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(plain.path());
  write_checkpoint(folder, config, layout,
                   [&](int unit) {
                     const UnitSpec& spec = layout.units[static_cast<size_t>(unit)];
                     at::Tensor flat = at::zeros({spec.elements});
                     reader.read_unit(spec, flat);
                     // Column 0 of the hidden state is this token's alone. What one neuron of the first MLP
                     // makes of it overflows where gate and up are multiplied; otherwise it does next to
                     // nothing.
                     for (const ParameterSpec& parameter : spec.parameters) {
                       at::Tensor view = parameter_view(flat, parameter);
                       if (parameter.name.ends_with("embed_tokens.weight")) {
                         view.select(1, 0).zero_();
                         view[kBadToken][0] = 1;
                       } else if (parameter.name.ends_with("layers.0.self_attn.o_proj.weight")) {
                         view[0].zero_();
                       } else if (parameter.name.ends_with("layers.0.mlp.gate_proj.weight") ||
                                  parameter.name.ends_with("layers.0.mlp.up_proj.weight")) {
                         view[0][0] = 1e21;
                       } else if (parameter.name.ends_with("layers.0.mlp.down_proj.weight")) {
                         view.select(1, 0).mul_(1e-12);
                       }
                     }
                     return flat;
                   },
                   at::kFloat, {});
}

}  // namespace trireme::testing
