#include "trireme/eval/reference_inputs.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void reference(Bytes input) {
  const auto path = write_input("reference.safetensors", input);
  taken_or_refused("reference.safetensors", [&] {
    for (const Causality causality : {Causality::causal, Causality::full}) {
      ModelConfig config;
      config.rotates = causality == Causality::causal;
      config.causality = causality;
      config.vocab_size = 5;
      read_reference_inputs(SafetensorsFile(path), config);
    }
  });
}

}  // namespace trireme::fuzz
