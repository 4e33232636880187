// The files of a Hugging Face folder beside config.json and weights: its tokenizer, and how it is used in chats.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

// Most models have some of these.
const std::vector<std::string>& tokenizer_file_names();
inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr const char* kGenerationConfigFile = "generation_config.json";
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
inline constexpr const char* kProcessorTemplateFile = "chat_template.json";  // older, of processors
// Where transformers has further chat templates, for calls of tools or retrieval: FOLDER/NAME.jinja.
inline constexpr const char* kChatTemplatesFolder = "additional_chat_templates";
bool is_further_chat_template(const std::string& name);
// Those that there are, the further templates too. Returns their names.
std::vector<std::string> copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace trireme
