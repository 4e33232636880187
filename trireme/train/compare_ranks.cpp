#include "trireme/train/compare_ranks.h"

#include <map>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/computed_fields.h"
#include "trireme/train/digest.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

Json options_of_run(const TrainOptions& options) {
  TrainOptions listed = options;
  OptionList list;
  list_train_options(list, listed);
  Json told = Json::object();
  for (const Option& option : list.options())
    if (option.in_config && !option.machine_alone && option.type != OptionType::path)
      told[option.name] = option.read();
  told["device"] = options.engine.device.is_cpu() ? "cpu" : "gpu";
  return told;
}

// By file: how many tensors and bytes, and a digest of the header's entries and of spread blocks.
Json weights_of(const fs::path& model_dir) {
  constexpr int64_t kBlocks = 16;
  const SafetensorsSet weights(model_dir);
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

// Throws on all ranks alike where a rank's facts differ from those of rank 0.
void compare(const std::string& what, const Json& facts, int rank, Agreement& agreement) {
  const Json first = parse_json(agreement.first_text(rank == 0 ? facts.dump() : ""), "the facts of rank 0");
  Json names = first;
  names.update(facts);
  std::string differences;
  for (const auto& [name, unused] : names.items()) {
    const Json of_first = first.value(name, Json()), of_rank = facts.value(name, Json());
    if (of_first == of_rank) continue;
    differences += cat("\n  ", name, " is ", quotation(of_first), " on rank 0 and ", quotation(of_rank),
                       " on rank ", rank);
  }
  const int64_t ranks = agreement.sum(int64_t{differences.empty() ? 0 : 1});
  if (ranks == 0) return;
  if (!differences.empty()) differences += cat(" (on ", host_name(), ")");
  const std::string named = agreement.first_text(differences);
  throw ConfigError(cat("the ranks of this run differ in ", what, ":", named,
                        ranks > 1 ? cat("\nand ", ranks - 1, " more of the ranks differ from rank 0") : "",
                        "\nGive every rank the same; `trireme launch` starts all of them with one command"));
}

}  // namespace

void compare_ranks(const TrainOptions& options, int rank, Agreement& agreement) {
  compare("their options", options_of_run(options), rank, agreement);
  Json config, weights;
  agreement.all_or_none(cat("reading the model ", options.model_dir.string()), [&] {
    config = computed_fields(read_model_config(options.model_dir));
    weights = weights_of(options.model_dir);
  });
  compare("config.json of their model", config, rank, agreement);
  compare("the weights of their model", weights, rank, agreement);
}

}  // namespace trireme
