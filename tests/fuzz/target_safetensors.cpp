#include "trireme/base/safetensors.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void safetensors(Bytes input) {
  const auto path = write_input("model.safetensors", input);
  taken_or_refused("model.safetensors", [&] {
    const SafetensorsFile file(path);
    for (const auto& [name, entry] : file.entries()) {
      std::string bytes(static_cast<size_t>(entry.bytes), '\0');  // no larger than the file
      entry.read(0, bytes.data(), entry.bytes);
    }
  });
}

}  // namespace trireme::fuzz
