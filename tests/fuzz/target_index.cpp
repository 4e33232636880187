#include <cstring>

#include "trireme/base/safetensors.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {
namespace {

void write_shard(const std::string& name, const std::string& tensor) {
  const std::string header = "{\"" + tensor + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header + "ab";
  write_input(name, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

void index(Bytes input) {
  static const bool once = [] {
    write_shard("model-1.safetensors", "a");
    write_shard("model-2.safetensors", "b");
    return true;
  }();
  static_cast<void>(once);
  const auto path = write_input("model.safetensors.index.json", input);
  taken_or_refused(scratch_folder().string(), [&] {
    const SafetensorsSet set(path.parent_path());
    for (const std::string& name : set.names()) {
      std::string bytes(static_cast<size_t>(set.at(name).bytes), '\0');
      set.at(name).read(0, bytes.data(), set.at(name).bytes);
    }
  });
}

}  // namespace trireme::fuzz
