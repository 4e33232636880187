#include "trireme/train/chat_files.h"

#include <cstdint>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/joined.h"
#include "trireme/data/tokenizer_vocabulary.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/train/checkpoint_names.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kEos = "eos_token_id";
constexpr int64_t kLargestTemplateBytes = int64_t{64} << 20;

std::vector<int64_t> stops_of(const Json& json, const fs::path& file) {
  const Json* found = find_field(json, kEos, file.string());
  if (found == nullptr) return {};
  std::vector<int64_t> ids;
  for (const Json& id : found->is_array() ? *found : Json::array({*found}))
    ids.push_back(whole_number(id, {-1, kLargestId}, cat(file.string(), ": ", kEos)));
  return ids;
}

// The model's; where it has none, what transformers makes of its config.json.
Json generation_config_of(const fs::path& model) {
  if (const fs::path file = model / kGenerationConfigFile; is_file(file)) return read_json(file);
  const fs::path file = model / "config.json";
  const Json config = is_file(file) ? read_json(file) : Json::object();
  const Json* language = find_field(config, "text_config", file.string());  // of one that reads images too
  Json made = Json::object();
  for (const char* id : {"bos_token_id", kEos, "pad_token_id"})
    for (const Json* of : {language, &config})
      if (const Json* found = of == nullptr ? nullptr : find_field(*of, id, file.string())) made[id] = *found;
  return made;
}

void add_stops(const ChatFormat& chats, const fs::path& model, const fs::path& adapter, ChatFiles& files) {
  std::vector<std::pair<int64_t, std::string>> wanted;  // and what it is, for people
  for (const auto& [token, id] : chats.end_tokens)
    wanted.emplace_back(id, cat("answers of the chats end in \"", quotation(token), "\" (", id, ")"));
  if (const fs::path file = adapter / kGenerationConfigFile; !adapter.empty() && is_file(file))
    for (const int64_t id : stops_of(read_json(file), file))
      wanted.emplace_back(id, cat(file.string(), " has ", id));
  if (wanted.empty()) return;
  Json generation = generation_config_of(model);
  std::vector<int64_t> stops = stops_of(generation, model / kGenerationConfigFile);
  std::vector<std::string> reasons;
  for (const auto& [id, reason] : wanted) {
    if (contains(stops, id)) continue;
    stops.push_back(id);
    reasons.push_back(reason);
  }
  if (reasons.empty()) return;
  generation[kEos] = stops;
  files.texts[kGenerationConfigFile] = generation.dump(2) + "\n";
  files.notes.push_back(
      cat(kGenerationConfigFile, ": ", kEos, " is now [", joined(stops), "], as ", joined(reasons, " and ")));
}

// As transformers' tokenizers have it, or processors; empty: none, or several without a default.
std::string template_of(const fs::path& folder) {
  if (const fs::path file = folder / kChatTemplateFile; is_file(file))
    return InputFile(file, "a chat template").whole(kLargestTemplateBytes);
  for (const char* name : {kProcessorTemplateFile, kTokenizerConfigFile}) {
    const fs::path file = folder / name;
    const Json json = is_file(file) ? read_json(file) : Json::object();
    const Json* found = find_field(json, "chat_template", file.string());
    if (found == nullptr) continue;
    if (found->is_string()) return found->get<std::string>();
    if (!found->is_array()) continue;
    for (const Json& one : *found)  // [{"name", "template"}, ...]
      if (text_value(one, "name", file.string(), "") == "default")
        return text_value(one, "template", file.string(), "");
  }
  return {};
}

void add_template(const ChatFormat& chats, const fs::path& model, const fs::path& adapter, ChatFiles& files) {
  const bool of_adapter = chats.chat_template.empty() && !adapter.empty();
  const std::string wanted = of_adapter ? template_of(adapter) : chats.chat_template;
  if (wanted.empty()) return;
  const std::string of_model = template_of(model);
  if (wanted == of_model) return;
  files.texts[kChatTemplateFile] = wanted;
  if (is_file(model / kProcessorTemplateFile))  // which processors prefer
    files.texts[kProcessorTemplateFile] = Json{{"chat_template", as_utf8(wanted)}}.dump(2) + "\n";
  files.notes.push_back(cat(kChatTemplateFile, ": the chat template ",
                            of_adapter ? cat("of ", adapter.string()) : "by which the chats were written",
                            of_model.empty() ? "" : ", in place of the model's"));
}

}  // namespace

ChatFiles chat_files(const ChatFormat& chats, const fs::path& model, const fs::path& adapter) {
  ChatFiles files;
  add_stops(chats, model, adapter, files);
  add_template(chats, model, adapter, files);
  return files;
}

ChatFormat saved_chat_format(const fs::path& folder) {
  const fs::path file = folder / kTrainerStateFile;
  if (!is_file(file)) return {};
  const Json state = read_json(file);
  const Json* saved = find_field(state, kSavedChats, file.string());
  return saved == nullptr ? ChatFormat{} : parse_chat_format(*saved, cat(file.string(), ": ", kSavedChats));
}

}  // namespace trireme
