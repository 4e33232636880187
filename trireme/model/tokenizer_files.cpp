#include "trireme/model/tokenizer_files.h"

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/make_folder.h"

namespace fs = std::filesystem;

namespace trireme {

bool is_further_chat_template(const std::string& name) {
  const std::string folder = cat(kChatTemplatesFolder, "/");
  return name.starts_with(folder) && name.ends_with(".jinja") &&
         is_plain_file_name(name.substr(folder.size()));
}

std::vector<std::string> copy_tokenizer(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  if (from.empty()) return copied;
  const auto copy = [&](const std::string& name) {
    copy_durable(from / name, to / name);
    copied.push_back(name);
  };
  for (const std::string& name : tokenizer_file_names())
    if (is_there(from / name)) copy(name);
  for (const fs::path& file : entries_of(from / kChatTemplatesFolder)) {
    const std::string name = cat(kChatTemplatesFolder, "/", file.filename().string());
    if (!is_further_chat_template(name) || !is_file(file)) continue;
    make_folder(to / kChatTemplatesFolder);
    copy(name);
    sync_folder(to / kChatTemplatesFolder);
  }
  return copied;
}

const std::vector<std::string>& tokenizer_file_names() {
  static const std::vector<std::string> names{
      "tokenizer.json",    kTokenizerConfigFile,   "special_tokens_map.json",
      "added_tokens.json", "vocab.json",           "vocab.txt",
      "merges.txt",        "tokenizer.model",      "tekken.json",
      kChatTemplateFile,   kProcessorTemplateFile, kGenerationConfigFile};
  return names;
}

}  // namespace trireme
