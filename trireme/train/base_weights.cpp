#include "trireme/train/base_weights.h"

#include <map>

#include "trireme/base/error.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/checksum.h"

namespace fs = std::filesystem;

namespace trireme {

Json describe_weights(const fs::path& dir, const char* single) {
  constexpr int64_t kBlocks = 16;
  const SafetensorsSet weights(dir, single);
  struct File {
    Digest header;
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::map<fs::path, File> files;
  for (const std::string& name : weights.names()) {
    const SafetensorsEntry& entry = weights.at(name);
    File& file = files[entry.file()];
    file.header.add(cat(name, " ", entry.dtype));
    for (const int64_t extent : entry.shape) file.header.add_number(static_cast<uint64_t>(extent));
    file.header.add_number(static_cast<uint64_t>(entry.offset));
    ++file.tensors;
    file.bytes = entry.source->bytes();
  }
  Json described = Json::object();
  for (auto& [path, file] : files) {
    file.header.add_number(digest_of_spread_blocks(path, kBlocks).value());
    described[path.filename().string()] =
        cat(file.tensors, " tensors in ", file.bytes, " bytes, digest ", file.header.text());
  }
  return described;
}

void check_base_weights(const fs::path& checkpoint, const fs::path& model_dir) {
  const fs::path file = checkpoint / kTrainerStateFile;
  const Json state = read_json(file);
  const Json* before = find_field(state, kBaseWeightsField, file.string());
  if (before == nullptr) return;
  const Json now = describe_weights(model_dir);
  if (now == *before) return;
  throw ConfigError(cat("the weights in ", model_dir.string(), " are not those beside which the adapters of ",
                        checkpoint.string(), " were trained:\n  then ", quotation(*before), "\n  now  ",
                        quotation(now), "\nGive the model of that run as --model_name_or_path"));
}

}  // namespace trireme
