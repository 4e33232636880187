#include "trireme/model/language_model.h"
#include "trireme/model/model_layout.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void config(Bytes input) {
  taken_or_refused("config.json", [&] {
    const LanguageModel model =
        language_model_of(parse_json(text_of(input), "config.json"), "config.json", "no-such-folder");
    const ModelConfig config = parse_model_config(model.config, "config.json");
    if (config.num_hidden_layers < 100) {
      const ModelLayout layout = make_model_layout(config);
      layout.parameter_count();
      layout.matmul_parameter_count();
    }
    config.attention_pairs(4096);
  });
}

}  // namespace trireme::fuzz
