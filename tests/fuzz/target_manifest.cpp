#include "trireme/train/checkpoint_manifest.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void manifest(Bytes input) {
  static const bool once = std::filesystem::create_directories(scratch_folder() / "step-40");
  static_cast<void>(once);
  const auto dir = write_input("step-40/manifest.json", input).parent_path();
  // The files that it names are not there, as after a copy that was stopped.
  taken_or_refused(dir.string(), [&] {
    for (const auto& [name, file] : read_manifest(dir).files)
      if (name.find('/') != std::string::npos || file.bytes < 0) std::abort();
    verify_checkpoint(dir);
  });
}

}  // namespace trireme::fuzz
