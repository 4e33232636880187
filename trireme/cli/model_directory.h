// Finds the folder that a model's name means, for every command that takes one.
#pragma once

#include <filesystem>
#include <string>

namespace trireme {

// A folder with config.json means itself. `org/name` is looked up in the Hugging Face cache on disk
// (HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub), at the revision that its refs/main names.
// Nothing is downloaded: for a missing model, the ConfigError gives the command that downloads it.
std::filesystem::path find_model_directory(const std::string& name_or_path);

// The model that a LoRA adapter's folder names, or `given` where that is not empty. Throws ConfigError that names both.
std::filesystem::path find_model_of_adapter(const std::filesystem::path& adapter, const std::string& given);

// The same for a tokenizer: a folder with tokenizer.json, the file, or org/name. Returns folder or file.
std::filesystem::path find_tokenizer(const std::string& name_or_path);

}  // namespace trireme
