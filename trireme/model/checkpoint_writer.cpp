#include <iomanip>
#include <memory>

#include <ATen/core/grad_mode.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/make_folder.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/base/sizes.h"
#include "trireme/kernels/split_master.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct DtypeName {
  const char* safetensors;
  const char* config;
};

DtypeName dtype_name(at::ScalarType dtype) {
  if (dtype == at::kFloat) return {"F32", "float32"};
  if (dtype == at::kBFloat16) return {"BF16", "bfloat16"};
  if (dtype == at::kHalf) return {"F16", "float16"};
  throw ConfigError(
      cat("weights cannot be written as ", c10::toString(dtype), "; choose float32, bfloat16 or float16"));
}

struct Shard {
  std::string file_name;
  std::vector<SafetensorsSpec> tensors;
  int64_t bytes = 0;
};

std::vector<Shard> plan_shards(const ModelLayout& layout, at::ScalarType dtype, int64_t shard_bytes) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<Shard> shards(1);
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec& spec : unit.parameters) {
      const int64_t bytes = spec.elements * element_bytes;
      if (!shards.back().tensors.empty() && shards.back().bytes + bytes > shard_bytes) shards.emplace_back();
      shards.back().tensors.push_back({spec.name, dtype_name(dtype).safetensors, spec.shape});
      shards.back().bytes += bytes;
    }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].file_name = shards.size() == 1 ? kWeightsFile
                                             : cat("model-", std::setfill('0'), std::setw(5), i + 1, "-of-",
                                                   std::setw(5), shards.size(), ".safetensors");
  return shards;
}

Json config_json(const ModelConfig& config, at::ScalarType dtype) {
  Json json = config.raw;
  json.erase("dtype");
  json["torch_dtype"] = dtype_name(dtype).config;  // the name that every version of transformers reads
  return json;
}

void check_room(const fs::path& dir, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(dir, error);
  if (!error && space.available < static_cast<uintmax_t>(bytes))
    throw DataError(cat(dir.string(), ": the weights need ", bytes, " bytes (", format_bytes(bytes),
                        "), but ", space.available, " (", format_bytes(static_cast<int64_t>(space.available)),
                        ") are free on that disk; nothing was written"));
}

}  // namespace

void write_checkpoint(const fs::path& out_dir, const ModelConfig& config, const ModelLayout& layout,
                      const std::function<at::Tensor(int unit)>& unit_flat, at::ScalarType dtype,
                      const fs::path& tokenizer_from, int64_t shard_bytes) {
  const at::NoGradGuard no_grad;
  const std::vector<Shard> shards = plan_shards(layout, dtype, shard_bytes);
  make_folder(out_dir);
  int64_t total_bytes = 0;
  for (const Shard& shard : shards) total_bytes += shard.bytes;
  check_room(out_dir, total_bytes);

  Json weight_map = Json::object();
  size_t shard = 0, tensor = 0;
  std::unique_ptr<SafetensorsWriter> writer;
  for (int unit = 0; unit < static_cast<int>(layout.units.size()); ++unit) {
    const at::Tensor flat = unit_flat(unit);
    for (const ParameterSpec& spec : layout.units[static_cast<size_t>(unit)].parameters) {
      if (!writer)
        writer =
            std::make_unique<SafetensorsWriter>(out_dir / shards[shard].file_name, shards[shard].tensors);
      const at::Tensor master = parameter_view(flat, spec).to(at::kCPU).contiguous().view(-1);
      at::Tensor values = master;
      if (dtype != master.scalar_type()) {
        values = at::empty(master.sizes(), dtype);
        round_masters(master, values);  // to the bits that a run in bf16 computes with
      }
      writer->write(spec.name, values.const_data_ptr(), static_cast<int64_t>(values.nbytes()));
      weight_map[spec.name] = shards[shard].file_name;
      if (++tensor == shards[shard].tensors.size()) {
        writer->finish();
        writer.reset();
        ++shard;
        tensor = 0;
      }
    }
  }
  if (shards.size() > 1) {
    const Json json = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    replace_file(out_dir / kWeightIndexFile, json.dump(2) + "\n");
  }
  replace_file(out_dir / "config.json", config_json(config, dtype).dump(2) + "\n");
  copy_tokenizer(tokenizer_from, out_dir);
}

}  // namespace trireme
