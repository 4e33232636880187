#include "trireme/eval/reference_inputs.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void reference(Bytes input) {
  const auto path = write_input("reference.safetensors", input);
  taken_or_refused("reference.safetensors", [&] {
    for (const ModelFamily family : {ModelFamily::llama, ModelFamily::bert}) {
      ModelConfig config;
      config.family = family;
      config.causality = family == ModelFamily::bert ? Causality::full : Causality::causal;
      config.vocab_size = 5;
      read_reference_inputs(SafetensorsFile(path), config);
    }
  });
}

}  // namespace trireme::fuzz
