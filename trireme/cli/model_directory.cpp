#include "trireme/cli/model_directory.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string_view>
#include <system_error>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/lora_files.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

fs::path hub_cache() {
  if (const auto cache = environment("HF_HUB_CACHE")) return *cache;
  if (const auto home = environment("HF_HOME")) return fs::path(*home) / "hub";
  if (const auto cache = environment("XDG_CACHE_HOME")) return fs::path(*cache) / "huggingface" / "hub";
  return fs::path(environment("HOME").value_or("/")) / ".cache" / "huggingface" / "hub";
}

// ORG/NAME, as Hugging Face spells both.
bool is_hub_name(std::string_view text) {
  const auto is_part = [](std::string_view part) {
    const auto fits = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
    };
    return !part.empty() && std::isalnum(static_cast<unsigned char>(part.front())) != 0 &&
           std::ranges::all_of(part, fits);
  };
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1));
}

// The folder that `name_or_path` means, which must hold `file`. `expected` tells the user what to give.
fs::path find_directory(const std::string& name_or_path, const char* file, const char* expected) {
  std::error_code ignored;
  if (fs::exists(fs::path(name_or_path) / file, ignored)) return name_or_path;
  const std::string name = quotation(name_or_path);
  if (fs::is_directory(name_or_path, ignored))
    throw ConfigError(cat("the folder ", name, " has no ", file, "; expected ", expected));
  if (!is_hub_name(name_or_path))
    throw ConfigError(
        cat("there is no folder '", name, "'; expected ", expected, ", or a name such as org/name"));
  std::string folder = "models--" + name_or_path;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path model = hub_cache() / folder;
  std::string revision;
  std::ifstream(model / "refs" / "main") >> revision;
  fs::path snapshot = model / "snapshots" / revision;
  if (revision.empty() || !fs::is_directory(snapshot, ignored))
    throw ConfigError(cat("there is no folder '", name, "', and the model is not in the Hugging Face cache (",
                          quotation(model.string()), "); download it with:  hf download ", name));
  if (!fs::exists(snapshot / file, ignored))
    throw ConfigError(cat(name, " is in the Hugging Face cache without ", file, " (", snapshot.string(),
                          "); download it with:  hf download ", name));
  return snapshot;
}

}  // namespace

fs::path find_model_directory(const std::string& name_or_path) {
  std::error_code ignored;
  const fs::path given = name_or_path;
  if (fs::exists(given / kAdapterConfigFile, ignored) && !fs::exists(given / kWeightsFile, ignored))
    throw ConfigError(
        cat("the folder '", quotation(name_or_path), "' holds a LoRA adapter (", kAdapterConfigFile,
            "); give the model that it belongs to, and this folder as --adapter, or make one model of "
            "both by trireme export --merge"));
  return find_directory(name_or_path, "config.json",
                        "a folder with config.json, which a Hugging Face model has");
}

fs::path find_model_of_adapter(const fs::path& adapter, const std::string& given) {
  const std::string named = given.empty() ? read_adapter_config(adapter).model : given;
  try {
    return find_model_directory(named);
  } catch (const ConfigError& error) {
    if (!given.empty()) throw;
    throw ConfigError(cat((adapter / kAdapterConfigFile).string(), " names the model '", quotation(named),
                          "': ", error.what(), "; if it is elsewhere now, give --model_name_or_path"));
  }
}

fs::path find_tokenizer(const std::string& name_or_path) {
  std::error_code ignored;
  if (fs::is_regular_file(name_or_path, ignored)) return name_or_path;
  return find_directory(name_or_path, "tokenizer.json", "a folder with tokenizer.json, or the file");
}

}  // namespace trireme
